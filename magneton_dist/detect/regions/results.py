"""Groups of regions as the audit tells them: both sides' operators, shapes and stacks side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from magneton_dist.detect.regions.lines import Line
from magneton_dist.detect.regions.names import GroupSide
from magneton_dist.detect.regions.statistics import spread_over
from magneton_dist.detect.regions.sums import SideSums
from magneton_dist.detect.regions.table import Quantity, RegionTable
from magneton_dist.energy.statistics import Ratio, mean_interval
from magneton_dist.records.audit import Interval, OperatorsAt, RegionOperator, RegionResult, RegionSide

MOST_RESULTS = 200
MOST_OPERATORS = 24  # of one side that are shown
DETAILED = 60  # results that show so many; the further ones show `FEW`
FEW = 6
MOST_FRAMES = 6
MOST_LOCATED = 64  # operators of a region that a result points to


def results_of(table: RegionTable, lines: list[Line]) -> list[RegionResult]:
    """The groups that differ most, at most `MOST_RESULTS`."""
    size = np.abs(table.difference)
    if table.rules.by == "values":
        size = np.array([table.values_error(g) or 0.0 for g in range(len(table.groups))])
    cost = table.amounts(0).mean(axis=0) + table.amounts(1).mean(axis=0)
    order = np.lexsort((-cost, -size))[:MOST_RESULTS]
    of_group = {group: line for line in lines for group in line.groups}
    return [
        _result(table, group, of_group.get(group), MOST_OPERATORS if place < DETAILED else FEW)
        for place, group in enumerate(order.tolist())
    ]


def _result(table: RegionTable, group: int, line: Line | None, most: int) -> RegionResult:
    one, other = table.sides(group)
    known = table.groups[group]
    joules = table.sums[0].joules is not None
    difference = None
    if joules:
        difference = mean_interval((table.amounts(1, "joules") - table.amounts(0, "joules"))[:, group])
    spread = spread_over(table.numbers, (table.sums[1].by_rank - table.sums[0].by_rank)[:, group])
    kind: Literal["matched", "one-sided", "unmatched"]
    kind = "one-sided" if table.one_sided[group] else "matched" if known.matched else "unmatched"
    phases = list(dict.fromkeys([*one.phases, *other.phases]))
    return RegionResult(
        title=table.label(group) + (" backward" if phases == ["backward"] else ""),
        baseline=table.a.name,
        candidate=table.b.name,
        kind=kind,
        judgement=_judgement(table, group, line),
        phases=phases,
        places=known.places,
        line=table.line(group),
        sides={table.a.name: _side(table, 0, group, one, most), table.b.name: _side(table, 1, group, other, most)},
        energy_kind=table.kind_of([group]),
        differs=line is not None and bool(line.kind),
        quantity=table.quantity,
        energy_ratio=_ratio(table, group, "joules") if joules else None,
        energy_ratio_range=line.ratio_range if line and _finite(line.ratio_range) else None,
        time_ratio=_ratio(table, group, "seconds"),
        difference_j=difference,
        values_error=_known(table.values_error(group)) if kind == "matched" else None,
        confidence=known.confidence,
        rank_median_j=spread.median if joules else None,
        rank_mad_j=spread.mad if joules else None,
        outlier_ranks=spread.outliers[:32],
        operators=operators_at(table, [group]),
    )


def operators_at(table: RegionTable, groups: Sequence[int]) -> dict[str, OperatorsAt]:
    """By variant: where the record has the operators of one region of each of these groups; nothing outside of audits.

    All are of the record that shows the first group.
    """
    found = {}
    for side, runs in enumerate((table.a, table.b)):
        shown = [table.sides(group)[side] for group in groups]
        record = shown[0].record
        if record.origin is None:
            return {}
        ops = sorted({op for s in shown if s.record is record for op in s.ops[:MOST_LOCATED]})
        found[runs.name] = OperatorsAt(*record.origin, record.step.step, record.ops["op_id"][ops].to_list())
    return found


def _judgement(table: RegionTable, group: int, line: Line | None) -> str:
    if line is not None:
        return line.judgement
    if not table.holds[group]:
        return "not in every traced step"
    if table.groups[group].split:
        return "on parameters of which a rank of the other variant holds another part: not compared"
    if table.apart[group]:
        return "not shown to be the same work: the runs were given other parameters, data or random numbers"
    if table.one_sided[group]:
        return "on one side only, of little weight"
    if not table.groups[group].matched:
        return "not shown to be the same work: what both sides make has no match"
    return f"differs by less than {table.rules.region:.0%}, or too little to matter"


def _ratio(table: RegionTable, group: int, quantity: Quantity) -> Interval | None:
    a, b = (table.amounts(side, quantity)[:, group] for side in (0, 1))
    return Ratio.of(b, a).interval() if (a > 0).all() and (b > 0).all() else None


def _side(table: RegionTable, side: int, group: int, shown: GroupSide, most: int) -> RegionSide:
    sums: SideSums = table.sums[side]
    stacks: dict[tuple[str, ...], int] = {}
    operators = [_operator(shown, op, stacks) for op in shown.ops[:most]]
    return RegionSide(
        joules=None if sums.joules is None else mean_interval(sums.joules[:, group]),
        seconds=float(sums.seconds[:, group].mean()),
        bytes=round(float(sums.bytes[group])),
        memory_bytes=round(float(sums.memory[group])),
        kernels=None if sums.launched is None else round(float(sums.launched[group])),
        operators=round(float(sums.operators[group])),
        shown=operators,
        hidden=max(0, len(shown.ops) - most),
        stacks=[list(stack[:MOST_FRAMES]) for stack in stacks],
    )


def _operator(side: GroupSide, op: int, stacks: dict[tuple[str, ...], int]) -> RegionOperator:
    record, graph = side.record, side.record.step.graph
    stack = record.op_stacks[op]
    joules = side.cost.joules
    return RegionOperator(
        name=str(record.ops["name"][op]),
        phase=str(record.ops["phase"][op]),
        inputs=record.shown(graph.inputs[op].tolist()),
        outputs=record.shown(graph.outputs[op].tolist()),
        stack=stacks.setdefault(stack, len(stacks)) if stack else None,
        seconds=float(side.cost.seconds[op]),
        joules=None if joules is None else float(joules[op]),
        bytes=int(record.moved_bytes[op]),
    )


def _known(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def _finite(ends: tuple[float, float] | None) -> bool:
    return ends is not None and all(map(math.isfinite, ends))
