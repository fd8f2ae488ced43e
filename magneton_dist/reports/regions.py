"""Regions of two variants for the reports: which to show, and how they are worded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from magneton_dist.records.audit import Audit, RegionOperator, RegionResult, RegionSide
from magneton_dist.reports.figures import (
    interval,
    one_line,
    percent,
    percent_change,
    quantity,
    ranks_text,
    ratio_change,
)

MAX_REGIONS = 60  # on the page, with their operators
MAX_FRAMES = 5
_TELLING_SHARE = 0.01  # of a side's cost: below it an operator's share is not worth a figure
Values = dict[str, object]


def differing(audit: Audit) -> list[RegionResult]:
    """The regions that are part of a finding, the largest differences first."""
    return [region for region in audit.regions if region.differs]


def shown_regions(audit: Audit) -> tuple[list[RegionResult], int]:
    """Regions for the page, those that differ first, and how many are left out."""
    ordered = [*differing(audit), *(region for region in audit.regions if not region.differs)]
    return ordered[:MAX_REGIONS], max(0, len(ordered) - MAX_REGIONS)


def region_title(region: RegionResult) -> str:
    """What it computes, and how often."""
    places = f" ({region.places:,} places)" if region.places > 1 else ""
    return one_line(region.title, 80) + places


UNITS = {"joules": "J", "seconds": "s", "memory": "B", "bytes": "B"}
_MEANING = {"seconds": "", "memory": " alive at the peak", "bytes": " moved"}


def side_amount(side: RegionSide, region: RegionResult) -> str:
    """What the side costs per step, in what the regions were compared by."""
    return quantity(_amount(side, region), UNITS[region.quantity], 3) if side.operators else "nothing"


def _amount(side: RegionSide, region: RegionResult) -> float:
    amounts = {
        "joules": 0.0 if side.joules is None else side.joules.mean,
        "seconds": side.seconds,
        "memory": float(side.memory_bytes),
        "bytes": float(side.bytes),
    }
    return amounts[region.quantity]


def _told(side: RegionSide, region: RegionResult) -> str:
    """`side_amount` with the provenance of joules, or what bytes mean."""
    if not side.operators:
        return side_amount(side, region)
    return side_amount(side, region) + _MEANING.get(region.quantity, f" {region.energy_kind}")


def region_change(region: RegionResult) -> tuple[str, str | None]:
    """Candidate against baseline as a change, with its interval; in words where one side runs nothing."""
    alone = [name for name, side in region.sides.items() if side.operators]
    if len(alone) == 1:
        return f"only {one_line(alone[0], 40)}", None
    ratio = {"joules": region.energy_ratio, "seconds": region.time_ratio}.get(region.quantity)
    if ratio is not None:
        return ratio_change(ratio)
    baseline, candidate = (_amount(region.sides[name], region) for name in (region.baseline, region.candidate))
    return (percent_change(candidate / baseline) if baseline > 0 else "unknown"), None


def region_values(region: RegionResult, largest: float) -> Values:
    """A region as the page's template reads it; `largest` is what a full bar stands for."""
    change, ends = region_change(region)
    return {
        "title": region_title(region),
        "tag": " · ".join([region.kind, *(one_line(phase, 20) for phase in region.phases), *_place(region.line)]),
        "judgement": one_line(region.judgement, 300),
        "differs": region.differs,
        "change": change,
        "ends": ends,
        "line": one_line(region.line),
        "facts": _facts(region),
        "sides": [_side(name, side, region, largest) for name, side in region.sides.items()],
    }


def short_frame(line: str) -> str:
    """A frame without its folder: ``model.py:44 forward``."""
    return one_line(re.split(r"[/\\]", line)[-1], 100)


def _place(line: str) -> list[str]:
    return [short_frame(line).split(" ", 1)[0]] if line else []


def largest_amount(regions: Sequence[RegionResult]) -> float:
    """The largest cost of any side."""
    return max((_amount(side, region) for region in regions for side in region.sides.values()), default=0.0)


def _facts(region: RegionResult) -> list[tuple[str, str]]:
    facts = []
    if region.difference_j is not None:
        mean, ends = interval(region.difference_j, "J")
        facts.append(("difference per step", f"{mean} {region.energy_kind}" + (f" ({ends})" if ends else "")))
    if region.time_ratio is not None:
        facts.append(("time", ratio_change(region.time_ratio)[0]))
    if region.energy_ratio_range is not None:
        low, high = region.energy_ratio_range
        facts.append(("ratio over the range of watts", f"{low:.2f} to {high:.2f}"))
    if region.values_error is not None:
        facts.append(("values differ by at most", f"{region.values_error:.1e}"))
    if region.rank_median_j is not None and region.rank_mad_j is not None:
        kind = region.energy_kind
        median, deviation = (f"{quantity(j, 'J', 3)} {kind}" for j in (region.rank_median_j, region.rank_mad_j))
        facts.append(("a rank's difference, median", f"{median}, deviation {deviation}"))
    if region.outlier_ranks:
        facts.append(("far from it", ranks_text(region.outlier_ranks)))
    facts.append(("same work", f"confidence {percent(region.confidence)}"))
    return facts


def _side(name: str, side: RegionSide, region: RegionResult, largest: float) -> Values:
    total = sum(_weight(op) for op in side.shown)
    figures = [_told(side, region)]
    if side.operators:
        if side.joules is not None and region.quantity != "joules":
            figures.append(f"{quantity(side.joules.mean, 'J', 3)} {region.energy_kind}")
        if region.quantity != "seconds":
            figures.append(quantity(side.seconds, "s", 3))
        if region.quantity != "bytes":
            figures.append(f"{quantity(side.bytes, 'B', 3)} moved")
        if side.memory_bytes and region.quantity != "memory":
            figures.append(f"{quantity(side.memory_bytes, 'B', 3)} alive at the peak")
        if side.kernels is not None:
            figures.append(f"{side.kernels:,} kernels")
        figures.append(f"{side.operators:,} operators")
    return {
        "name": one_line(name, 60),
        "amount": figures[0],
        "width": round(100.0 * _amount(side, region) / largest, 2) if largest else 0.0,
        "figures": figures[1:],
        "stretches": [
            {
                "frames": [one_line(frame) for frame in (side.stacks[stack] if stack is not None else [])[:MAX_FRAMES]],
                "operators": [_operator(op, total, many_phases=len(region.phases) > 1) for op in ops],
            }
            for stack, ops in _stretches(side.shown)
        ],
        "hidden": side.hidden,
    }


def _stretches(operators: Sequence[RegionOperator]) -> list[tuple[int | None, list[RegionOperator]]]:
    """Operators in order of execution, those of one stack in a row together."""
    found: list[tuple[int | None, list[RegionOperator]]] = []
    for operator in operators:
        if not found or found[-1][0] != operator.stack:
            found.append((operator.stack, []))
        found[-1][1].append(operator)
    return found


def _weight(operator: RegionOperator) -> float:
    return (operator.seconds or 0.0) if operator.joules is None else operator.joules


def _operator(operator: RegionOperator, total: float, *, many_phases: bool) -> Values:
    share = _weight(operator) / total if total > 0 else 0.0
    facts = [one_line(operator.phase, 20) if many_phases else "", quantity(operator.bytes, "B", 3)]
    if share >= _TELLING_SHARE:
        facts.append(f"{percent(share)} of this side")
    return {
        "name": one_line(operator.name, 120),
        "facts": ", ".join(fact for fact in facts if fact),
        "inputs": ", ".join(one_line(text, 80) for text in operator.inputs) or "nothing",
        "outputs": ", ".join(one_line(text, 80) for text in operator.outputs) or "nothing",
    }
