"""Regions that differ, put together by the line of source that both variants run, and judged there.

A line's forward and backward regions are one thing to a reader, and work that a variant only moves from one
phase to the other (recomputation) costs nothing by itself: what is judged is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from magneton_dist.detect.regions.statistics import Ratios, ratio_ranges
from magneton_dist.detect.regions.table import RegionTable
from magneton_dist.matching.arrays import Floats

FLOOR_SHARE = 0.005  # of the hungrier variant's run: less is not worth a reader's time
COVERED = 0.5  # with less in matched regions, operators on one side may only have failed to match
AGREEING_RANKS = 0.75  # of a single repeat must show the difference
CONTROLS = 5  # regions with the same operators on both sides, at least, that show the noise between two runs
BEYOND_CONTROLS = 2.0  # standard deviations of theirs


@dataclass(eq=False)
class Line:
    """Groups that differ at one line and compute the same kind of thing.

    Attributes:
        frame: the line, empty when not known; label: what is computed.
        groups: columns of the table.
        a, b: (repeats,) what they cost, in the table's quantity.
        judgement: in words.
        kind: of the finding it becomes; empty when it becomes none.
        ratio: b over a, infinite or 0 where one side runs nothing.
        ratio_range: over the watts of operators' classes, None where joules are not compared.
        prices: what the cheaper side pays, in words.
        values_error: largest relative difference of what both make.
        certain: shown by repeats, not by one run each.
    """

    frame: str
    label: str
    groups: list[int]
    a: Floats
    b: Floats
    judgement: str = ""
    kind: str = ""
    ratio: float = 1.0
    ratio_range: tuple[float, float] | None = None
    prices: list[str] = field(default_factory=list)
    values_error: float | None = None
    certain: bool = True

    @property
    def size(self) -> float:
        """Difference, mean over repeats."""
        return abs(float((self.b - self.a).mean()))


def judged_lines(table: RegionTable, floor: float) -> list[Line]:
    """The lines with regions that differ, judged.

    Args:
        table: of the comparison.
        floor: difference per step, in the table's quantity, below which a line stays silent.
    """
    lines = [line for of_frame in _by_frame(table, floor).values() for line in _split(table, of_frame, floor)]
    open_ = [line for line in lines if not line.judgement]
    if open_:
        ratios = Ratios.of(np.stack([x.a for x in open_], axis=1), np.stack([x.b for x in open_], axis=1))
        noise = _noise_of_controls(table, floor)
        for i, line in enumerate(open_):
            _judge(table, line, bool(ratios.differs[i]), noise)
    return sorted(lines, key=lambda line: line.size, reverse=True)


def _by_frame(table: RegionTable, floor: float) -> dict[object, list[int]]:
    """Columns that differ by `compare.region` or stand on one side only, by the line they share."""
    threshold = float(np.log1p(table.rules.region))
    differ = table.matched & (np.abs(np.nan_to_num(table.ratios.log)) >= threshold)
    if table.covered >= COVERED:
        differ |= table.one_sided
    differ &= ~table.apart
    # many small ones at one line add up, but not from nothing
    differ &= np.abs(table.difference) >= floor / 100
    if table.rules.by == "values":
        errors = np.array([table.values_error(g) or 0.0 for g in range(len(table.groups))])
        differ = table.matched & (errors > table.rules.values)
    found: dict[object, list[int]] = {}
    for group in np.nonzero(differ & table.holds)[0].tolist():
        found.setdefault(table.line(group) or group, []).append(group)
    return found


def _split(table: RegionTable, groups: list[int], floor: float) -> list[Line]:
    """The lines of one frame; one that only moves work between phases stays whole."""
    whole = _line(table, groups)
    if table.rules.by == "values":
        floor = 0.0
    phases = {phase for g in groups for side in table.sides(g) for phase in side.phases}
    signs = {bool(table.difference[g] > 0) for g in groups}
    if len(phases) > 1 and len(signs) > 1 and not _beyond(table, whole):
        whole.judgement = f"only moved between {' and '.join(sorted(phases))}: their sum does not differ"
        return [whole]
    by_label: dict[str, list[int]] = {}
    for group in groups:
        by_label.setdefault(table.label(group), []).append(group)
    lines = [_line(table, of_label) for of_label in by_label.values()]
    for line in lines:
        if line.size < floor:
            line.judgement = f"differs, but by less than {FLOOR_SHARE:.1%} of the run"
    return lines


def _line(table: RegionTable, groups: list[int]) -> Line:
    groups = sorted(groups, key=lambda g: -abs(float(table.difference[g])))
    a, b = (table.amounts(side)[:, groups].sum(axis=1) for side in (0, 1))
    line = Line(table.line(groups[0]), table.label(groups[0]), groups, a, b)
    line.ratio = _quotient(float(b.mean()), float(a.mean()))
    return line


def _quotient(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else float("inf")


def _beyond(table: RegionTable, line: Line) -> bool:
    """Is the difference at least `compare.region`?"""
    return not 1 / (1 + table.rules.region) < line.ratio < 1 + table.rules.region


def _judge(table: RegionTable, line: Line, told_apart: bool, noise: float) -> None:
    groups = line.groups
    one_sided = not (line.a.any() and line.b.any())
    region = table.rules.region
    line.values_error = max((e for g in groups if (e := table.values_error(g)) is not None), default=None)
    if table.rules.by == "values":
        line.prices = list(_prices(table, line))
        line.kind, line.judgement = "trade-off", " and ".join(line.prices)
        return
    if not _beyond(table, line):
        line.judgement = f"differs within {region:.0%}, all its regions together"
        return
    if table.quantity == "joules" and table.kind_of(groups) != "replayed":
        seconds = [table.sums[side].class_seconds[groups].sum(axis=0)[None, :] for side in (0, 1)]
        low, high = ratio_ranges(seconds[0], seconds[1], table.a.profile)
        line.ratio_range = (line.ratio * float(low[0]), line.ratio * float(high[0]))
        ends = line.ratio_range
        if not one_sided and not (min(ends) >= 1 + region or max(ends) <= 1 / (1 + region)):
            line.judgement = f"depends on the watts of the operators: ratio {ends[0]:.2f} to {ends[1]:.2f}"
            return
    deterministic = table.quantity in ("memory", "bytes")
    if not deterministic and table.disturbed and all(_same_names(table, g) for g in groups):
        line.certain = False
        line.judgement = "the same operators, on ranks that waited for a core: their times say nothing"
        return
    if not (told_apart or one_sided or deterministic):
        line.certain = False
        if table.repeats > 1:
            line.judgement = "cannot be told from the noise between repeats"
            return
        if all(_same_operators(table, g) for g in groups):
            line.judgement = "the same operators in one run each: more repeats would tell"
            return
        if _agreeing_ranks(table, groups) < AGREEING_RANKS:
            line.judgement = "not on most of the ranks, in one run each"
            return
        if abs(np.log(line.ratio)) <= BEYOND_CONTROLS * noise:
            line.judgement = "in one run each, regions with the same operators on both sides differ as much"
            return
    line.prices = list(_prices(table, line))
    line.kind = "trade-off" if line.prices else "region"
    line.judgement = f"a trade-off: {' and '.join(line.prices)}" if line.prices else "differs"


def _noise_of_controls(table: RegionTable, floor: float) -> float:
    """Standard deviation of the log ratios of regions whose operators are the same on both sides."""
    cost = np.minimum(*(table.amounts(side).mean(axis=0) for side in (0, 1)))
    large = np.nonzero(table.matched & (cost >= floor / 10))[0].tolist()
    logs = [float(table.ratios.log[g]) for g in large if _same_operators(table, g)]
    return float(np.sqrt(np.mean(np.square(logs)))) if len(logs) >= CONTROLS else 0.0


def _same_operators(table: RegionTable, group: int) -> bool:
    """And as often: what every rank repeats is more on more ranks."""
    often = np.isclose(table.sums[0].operators[group], table.sums[1].operators[group])
    return bool(often) and _same_names(table, group)


def _same_names(table: RegionTable, group: int) -> bool:
    one, other = ([side.record.step.graph.names[op] for op in side.computing] for side in table.sides(group))
    return one == other


def _agreeing_ranks(table: RegionTable, groups: list[int]) -> float:
    """Share of the ranks on which the difference has the sign of the whole."""
    difference = (table.sums[1].by_rank - table.sums[0].by_rank)[:, groups].sum(axis=1)
    return float((difference * difference.sum() > 0).mean())


def _prices(table: RegionTable, line: Line) -> Iterable[str]:
    """What the cheaper side pays for being cheaper."""
    cheap = table.b.name if line.ratio < 1 else table.a.name
    sign = 1 if line.ratio < 1 else -1  # the cheaper side's cost over the other's: b over a, or a over b
    if line.values_error is not None and line.values_error > table.rules.values:
        yield f"the values differ by up to {line.values_error:.2g}"
    a, b = (table.amounts(side, "seconds")[:, line.groups].sum(axis=1, keepdims=True) for side in (0, 1))
    time = Ratios.of(a, b)
    log, half = sign * float(time.log[0]), float(time.half[0])
    if table.quantity != "seconds" and log - half > np.log1p(table.rules.time):  # never from one run each
        yield f"{cheap} takes {np.expm1(log):.1%} longer there"
    one, other = (table.peak_bytes(side) for side in (0, 1))
    more = other / one - 1 if line.ratio < 1 else one / other - 1
    if table.quantity != "memory" and more >= table.rules.region:
        # of the whole step: what is kept for later is rarely made by the operators that it saves
        yield f"{cheap} holds {more:.0%} more at the step's peak"
