"""Two variants region by region: where equal work costs differently, and who runs what the other does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from magneton_dist.config import Compare
from magneton_dist.detect.regions.classes import RunAll, match_classes, samples_of
from magneton_dist.detect.regions.findings import finding_of
from magneton_dist.detect.regions.lines import COVERED, FLOOR_SHARE, judged_lines
from magneton_dist.detect.regions.places import group_regions
from magneton_dist.detect.regions.records import Load, StepRecord
from magneton_dist.detect.regions.results import results_of
from magneton_dist.detect.regions.statistics import classes_of
from magneton_dist.detect.regions.sums import sum_sides
from magneton_dist.detect.regions.table import RegionTable
from magneton_dist.detect.runs import VariantRuns, total_j
from magneton_dist.matching.graph import UNKNOWN
from magneton_dist.records.audit import Finding, RegionResult

AGREEING = 0.95  # of the values that match on one rank of a class should match on the others


@dataclass(frozen=True)
class RegionComparison:
    """What comes of comparing the traced steps of two variants.

    Attributes:
        results: regions, the largest differences first.
        findings: of the kinds `region` and `trade-off`.
        covered: share of the steps' cost in matched regions; None when nothing was compared.
        agree: the variants' compute costs the same, and so do its parts.
        peaks: bytes alive at a traced step's peak, all ranks, of either variant; None when nothing was compared.
        notes: what was left out, and why.
    """

    results: list[RegionResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    covered: float | None = None
    agree: bool = False
    peaks: tuple[float, float] | None = None
    notes: list[str] = field(default_factory=list)


def compare_regions(
    a: VariantRuns, b: VariantRuns, load: Load, rules: Compare, run_all: RunAll | None = None
) -> RegionComparison:
    """Compare the traced steps of two variants, whose repeats pair in order.

    Args:
        a, b: the baseline and the candidate.
        load: a traced step of a rank.
        rules: what counts as a difference.
        run_all: matches several classes of ranks at once, see `match_classes`.
    """
    samples = samples_of(a, b)
    if not samples:
        return RegionComparison(notes=_nothing_traced(a, b))
    pairs, left_out = match_classes(samples, (a.name, b.name), load, run_all)
    seen = [any(map(_has_fingerprints, records)) for records in zip(*((pair.a, pair.b) for pair in pairs), strict=True)]
    if not all(seen):
        without = " and ".join(runs.name for runs, has in zip((a, b), seen, strict=True) if not has)
        note = f"regions were not compared: values of {without} have no fingerprints (capture.fingerprints)"
        return RegionComparison(notes=[note])
    ranks = sorted({s.ranks for pair in pairs for s in pair.samples}, key=lambda pair: pair.number)
    places = group_regions(pairs)
    sums = sum_sides(pairs, places, len(a.repeats), ranks, classes_of(a.profile))
    table = RegionTable(a, b, rules, ranks, pairs, places, sums)
    lines = judged_lines(table, _floor(table))
    return RegionComparison(
        results=results_of(table, lines),
        findings=[finding_of(table, line) for line in lines if line.kind],
        covered=table.covered,
        agree=not any(line.kind for line in lines) and _totals_agree(table),
        peaks=(table.peak_bytes(0), table.peak_bytes(1)),
        notes=_notes(table, left_out),
    )


def _has_fingerprints(record: StepRecord) -> bool:
    return bool((record.step.graph.kind != UNKNOWN).any())


def _timed_on_the_host(record: StepRecord) -> bool:
    """Did operators run on a GPU without being seen there?"""
    devices = record.step.values["device"].drop_nulls()
    return record.launched is None and bool(devices.str.starts_with("cuda").any())


def _floor(table: RegionTable) -> float:
    """Difference per step, in the table's quantity, that is worth a reader's time."""
    whole = [table.amounts(0).sum(axis=1).mean(), table.amounts(1).sum(axis=1).mean()]
    if table.quantity == "memory":
        whole = [table.peak_bytes(0), table.peak_bytes(1)]
    elif table.quantity in ("joules", "seconds"):
        whole += [per_step for runs in (table.a, table.b) if (per_step := _per_step(table, runs)) is not None]
    return FLOOR_SHARE * float(max(whole))


def _per_step(table: RegionTable, runs: VariantRuns) -> float | None:
    """What a step of this variant costs all in all: also what is no operator's."""
    figures = []
    for run in runs.repeats:
        steps = np.mean([summary.steps for summary in run.values()])
        joules = total_j(run.values())
        cost = sum(s.window_s for s in run.values()) if table.quantity == "seconds" else joules
        if cost is None or not steps:
            return None
        figures.append(cost / steps)
    return float(np.mean(figures))


def _totals_agree(table: RegionTable) -> bool:
    a, b = (float(table.amounts(side).sum()) for side in (0, 1))
    return max(a, b) <= (1 + table.rules.region) * min(a, b)


def _nothing_traced(a: VariantRuns, b: VariantRuns) -> list[str]:
    without = [runs.name for runs in (a, b) if not any(s.traced for run in runs.repeats for s in run.values())]
    ranks = "the same rank" if a.world_size == b.world_size else "all ranks of a shard"
    who = " and ".join(without) or f"{ranks} of {a.name} and {b.name}"
    return [f"regions were not compared: no operators were recorded of {who} (capture.graph_steps)"]


def _notes(table: RegionTable, left_out: int) -> list[str]:
    a, b, notes = table.a, table.b, []
    between = f"{b.name} against {a.name}"
    if left_out:
        notes.append(f"{between}: {left_out} traced steps of ranks in rare classes were not compared by region")
    notes += [*_degrees(table), *_split(table)]
    notes += [f"{between}: {text}" for pair in table.pairs[:1] for text in pair.found.parting]
    notes += [
        f"{between}: only {pair.found.agreement:.0%} of the values that match on rank {pair.samples[0].ranks.number} "
        "match on other ranks with the same operators; their regions may do different work"
        for pair in table.pairs
        if pair.found.agreement < AGREEING
    ]
    alone = {runs.name: sorted(set(runs.ranks) - set(table.ranks_of(side))) for side, runs in enumerate((a, b))}
    notes += [
        f"{between}: {_count(ranks)} of {name} without a counterpart that has a traced step: not compared by region"
        for name, ranks in alone.items()
        if ranks
    ]
    if table.quantity == "seconds" and table.rules.by != "time":
        notes.append(f"{between}: the joules of operators are unknown, so regions are compared by their time")
    if table.quantity == "bytes":
        notes.append(f"{between}: operators have no times, so regions are compared by the bytes that they move")
    if any(_timed_on_the_host(pair.a) or _timed_on_the_host(pair.b) for pair in table.pairs):
        notes.append(
            f"{between}: no kernels were captured in the traced steps: operators on the GPU have the times of their "
            "launches, by which their joules were shared out"
        )
    if table.repeats == 1 and table.quantity in ("joules", "seconds"):
        notes.append(f"{between}: one run each gives regions no interval: set repeats to 2 or more")
    if table.covered < COVERED:
        notes.append(
            f"{between}: only {table.covered:.0%} of the traced steps' cost lies in regions whose values match; "
            "operators on one side only may do the same work with other numbers"
        )
    return notes


def _degrees(table: RegionTable) -> list[str]:
    """How the ranks of jobs of unequal numbers of ranks were compared, in words."""
    a, b, first = table.a, table.b, table.ranks[0]
    if a.world_size == b.world_size:
        return []
    return [
        f"{b.name} against {a.name}: the work of {_count(first.block_a)} of {a.name} is compared with that of "
        f"{_count(first.block_b)} of {b.name}, neighbours together; shards differ, so regions end where all of these "
        "ranks hold the same values, such as the results of collectives"
    ]


def _split(table: RegionTable) -> list[str]:
    """That parameters are sharded in other ways, in words."""
    if not any(group.split for group in table.groups):
        return []
    return [
        f"{table.b.name} against {table.a.name}: ranks hold other parts of the parameters (sharding): what works on "
        "them in parts, such as the optimizer, has no counterpart and is not compared"
    ]


def _count(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 1 else "1 rank"
