"""Findings of the kinds `region` and `trade-off`: a line of source where one variant burns more for equal work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magneton_dist.detect.regions.lines import Line
from magneton_dist.detect.regions.names import GroupSide
from magneton_dist.detect.regions.results import operators_at
from magneton_dist.detect.regions.statistics import spread_over
from magneton_dist.detect.regions.table import Quantity, RegionTable
from magneton_dist.energy.statistics import mean_interval
from magneton_dist.matching.arrays import Floats
from magneton_dist.records.audit import Finding, Interval, OperatorsAt, Place

Evidence = dict[str, float | int | str | Sequence[int | str]]

MOST_NAMES = 8  # operators that a sentence names
MOST_FRAMES = 6
_VERB: dict[Quantity, str] = {
    "joules": "burns {}x the joules of",
    "seconds": "takes {}x the time of",
    "memory": "holds {}x the memory of",
    "bytes": "moves {}x the bytes of",
}


def finding_of(table: RegionTable, line: Line) -> Finding:
    """The finding that `line` becomes."""
    hungry_side = 1 if line.ratio > 1 else 0
    hungry, cheap = (table.b, table.a) if hungry_side else (table.a, table.b)
    times = line.ratio if hungry_side else 1 / line.ratio if line.ratio else float("inf")
    shown = _shown(table, line)
    mine, theirs = table.sides(shown)[hungry_side], table.sides(shown)[1 - hungry_side]
    places = max(table.groups[g].places for g in line.groups)
    where = f" in {places} places" if places > 1 else ""
    does = f"only {hungry.name} runs it" if np.isinf(times) else (
        f"{hungry.name} {_VERB[table.quantity].format(_times(times))} {cheap.name}"
    )
    joules = _over_run(table, line, hungry_side, "joules") if table.quantity == "joules" else None
    seconds = _over_run(table, line, hungry_side, "seconds").mean
    confidence = float(np.mean([table.groups[g].confidence for g in line.groups]))
    return Finding(
        kind="trade-off" if line.prices else "region",
        title=f"{line.label}: {does}{where}",
        variant=hungry.name,
        joules=joules,
        energy_kind=table.kind_of(line.groups),
        share=hungry.share_of_run(joules),
        seconds=seconds if table.quantity in ("joules", "seconds") else max(0.0, seconds),
        ranks=table.ranks_of(hungry_side),
        where=Place(what=_what(table, line), stack=_stack(mine), operators=_operators(table, line)),
        evidence=_evidence(table, line, places, hungry_side),
        fix=_fix(table, hungry_side, mine, theirs),
        confidence=confidence if line.certain else confidence / 2,
        bytes=line.size if table.quantity in ("memory", "bytes") else None,
    )  # fmt: skip


def _shown(table: RegionTable, line: Line) -> int:
    """The region that differs most: of the forward pass, if one there counts, for its operators are the user's."""
    forward = [g for g in line.groups if "forward" in table.sides(g)[0].phases + table.sides(g)[1].phases]
    largest = abs(float(table.difference[line.groups[0]]))
    return next((g for g in forward if abs(float(table.difference[g])) >= largest / 10), line.groups[0])


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 1.2 else f"{ratio:.2f}"


def _what(table: RegionTable, line: Line) -> str:
    phases = list(dict.fromkeys(p for g in line.groups for side in table.sides(g) for p in side.phases))
    return ", ".join(part for part in (" and ".join(phases), line.frame and f"from {line.frame}") if part)


def _stack(side: GroupSide) -> list[str]:
    """Frames of the operator that costs most, from the inside."""
    if not side.ops:
        return []
    op = max(side.telling, key=lambda i: (float(side.cost.seconds[i]), -i))
    return list(side.record.op_stacks[op][:MOST_FRAMES])


def _operators(table: RegionTable, line: Line) -> dict[str, OperatorsAt]:
    """Where the record has the operators of both sides: of each phase, the region that differs most."""
    of_phases = {tuple(table.sides(group)[0].phases): group for group in reversed(line.groups)}
    return operators_at(table, list(of_phases.values()))


def _over_run(table: RegionTable, line: Line, hungry_side: int, quantity: Quantity) -> Interval:
    """What the hungrier side's whole run pays beyond the other, over the repeats."""
    per_step = table.amounts(1, quantity)[:, line.groups] - table.amounts(0, quantity)[:, line.groups]
    total = per_step.sum(axis=1) * (1 if hungry_side else -1)
    return mean_interval(total * _steps(table, line, hungry_side))


def _steps(table: RegionTable, line: Line, hungry_side: int) -> float:
    """Steps of a rank in a run, mean over the ranks, which count by how much they differ."""
    runs = table.b if hungry_side else table.a
    ranks = [pair.b if hungry_side else pair.a for pair in table.ranks]
    steps = np.array([np.mean([run[rank].steps for run in runs.repeats if rank in run]) for rank in ranks])
    weight = np.abs(_by_rank(table, line))
    return float(np.average(steps, weights=weight)) if weight.sum() > 0 else float(steps.mean())


def _by_rank(table: RegionTable, line: Line) -> Floats:
    return np.asarray((table.sums[1].by_rank - table.sums[0].by_rank)[:, line.groups].sum(axis=1))


def _evidence(table: RegionTable, line: Line, places: int, hungry_side: int) -> Evidence:
    unit = {"joules": "j", "seconds": "s"}.get(table.quantity, "bytes")
    evidence: Evidence = {"places": places}
    for name, amounts, side in ((table.a.name, line.a, 0), (table.b.name, line.b, 1)):
        evidence[f"{name}_per_step_{unit}"] = float(amounts.mean())
        ops = table.sides(_shown(table, line))[side]
        evidence[f"{name}_operators"] = _names(ops) or "none"
    if line.ratio_range is not None and 0 < line.ratio < np.inf:
        low, high = sorted(ratio if hungry_side else 1 / ratio for ratio in line.ratio_range)
        evidence["ratio_over_the_watts"] = f"{low:.2f} to {high:.2f}"
    if line.values_error is not None:
        evidence["values_differ_by_at_most"] = line.values_error
    if line.prices:
        evidence["price"] = "; ".join(line.prices)
    if len(table.ranks) > 1 and unit != "bytes":
        spread = spread_over(table.numbers, _by_rank(table, line))
        evidence[f"median_over_ranks_{unit}"] = abs(spread.median)
        evidence[f"deviation_over_ranks_{unit}"] = spread.mad
        if spread.outliers:
            evidence["ranks_far_from_it"] = spread.outliers[:16]
    evidence["repeats"] = table.repeats
    return evidence


def _names(side: GroupSide) -> str:
    """Operators in order of execution, each once, as a sentence names them."""
    names = list(dict.fromkeys(side.record.step.graph.names[op] for op in side.telling))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _fix(table: RegionTable, hungry_side: int, mine: GroupSide, theirs: GroupSide) -> str:
    hungry, cheap = (table.b, table.a) if hungry_side else (table.a, table.b)
    stack = _stack(mine)
    at = f" at {stack[0].split(' ', 1)[0]}" if stack else ""
    if not theirs.ops:
        return f"Leave out {_names(mine)}{at}: {cheap.name} does the same work without."
    if _names(mine) == _names(theirs) and _calls(mine) != _calls(theirs):
        often = f"{len(mine.computing)} operators in {hungry.name} against {len(theirs.computing)} in {cheap.name}"
        return f"Both run {_names(mine)}{at}, not as often or in another order ({often}): do as {cheap.name} does."
    if _calls(mine) != _calls(theirs):
        return f"Do{at} what {cheap.name} does: {_names(theirs)} instead of {_names(mine)}."
    run = f"Both run {_names(mine)}{at}"
    if hungry.world_size > cheap.world_size:
        on = f"{hungry.name} on {hungry.world_size} ranks and {cheap.name} on {cheap.world_size}"
        if _tensors(mine) == _tensors(theirs):
            return f"{run}, {on}: share it out among the ranks, as sequence parallelism does, where each repeats it."
        return f"{run}, {on}: small shards use a device less well; a lower degree, or more work for each rank."
    return (
        f"{run}; what {cheap.name} sets differently makes it cheaper: compare the settings that differ between the "
        "variants."
    )


def _calls(side: GroupSide) -> list[str]:
    return [side.record.step.graph.names[op] for op in side.computing]


def _tensors(side: GroupSide) -> list[list[str]]:
    graph = side.record.step.graph
    return [side.record.shown(graph.outputs[op].tolist()) for op in side.computing]
