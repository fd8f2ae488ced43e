"""What groups of regions cost on each side: sums over all ranks of a class at once, no loop over ranks' operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton_dist.detect.regions.classes import ClassPair, Sample
from magneton_dist.detect.regions.places import Places
from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.ranks import RankPair, region_sums


@dataclass(frozen=True, eq=False)
class SideSums:
    """One variant's groups, per step (the mean over a rank's traced steps).

    Attributes:
        joules, seconds: (repeats, groups) sums over ranks; joules are None when any rank's are unknown.
        by_rank: (pairs of ranks, groups) joules, or seconds without joules, of each pair, mean over repeats.
        class_seconds: (groups, classes) seconds by class of operator, all ranks, mean over repeats.
        bytes, memory, operators: (groups,) read and written; alive at the step's peak; number: all ranks.
        launched: (groups,) intervals on the device, None where a class captured none.
    """

    joules: Floats | None
    seconds: Floats
    by_rank: Floats
    class_seconds: Floats
    bytes: Floats
    memory: Floats
    operators: Floats
    launched: Floats | None


@dataclass(frozen=True, eq=False)
class _Layout:
    repeats: int
    groups: int
    row_of: dict[RankPair, int]
    classes: Sequence[str]
    steps: Counter[tuple[int, RankPair]]  # traced steps of a pair of ranks in a repeat
    seen: Counter[RankPair]  # repeats of a pair
    joules: bool


@dataclass(frozen=True, eq=False)
class _ClassSide:
    """One side of a class: operators' groups, what they cost in each sample, and how much of that counts."""

    record: StepRecord
    group: Ints
    samples: list[Sample]
    costs: list[TracedStep]
    shares: Floats


def sum_sides(
    pairs: Sequence[ClassPair], places: Places, repeats: int, ranks: Sequence[RankPair], classes: Sequence[str]
) -> tuple[SideSums, SideSums]:
    """Sum both variants.

    Args:
        pairs: classes of ranks, matched.
        places: their regions, grouped.
        repeats: how many there are.
        ranks: the pairs of ranks of the samples; rows of `by_rank` follow them.
        classes: of operators; columns of `class_seconds` follow them, others are left out.
    """
    both = list(zip(pairs, places.of_region, strict=True))
    sides = ([_side_a(p, of) for p, of in both], [_side_b(p, of) for p, of in both])
    steps = Counter((s.repeat, s.ranks) for pair in pairs for s in pair.samples)
    layout = _Layout(
        repeats=repeats,
        groups=len(places.groups),
        row_of={pair: row for row, pair in enumerate(ranks)},
        classes=classes,
        steps=steps,
        seen=Counter(pair for _, pair in steps),
        joules=all(cost.joules is not None for side in sides for part in side for cost in part.costs),
    )
    return _sum_side(sides[0], layout), _sum_side(sides[1], layout)


def _side_a(pair: ClassPair, group: Ints) -> _ClassSide:
    shares = np.array([s.ranks.share_a for s in pair.samples])
    return _ClassSide(pair.a, group[pair.region_a], pair.samples, [s.a for s in pair.samples], shares)


def _side_b(pair: ClassPair, group: Ints) -> _ClassSide:
    shares = np.array([s.ranks.share_b for s in pair.samples])
    return _ClassSide(pair.b, group[pair.region_b], pair.samples, [s.b for s in pair.samples], shares)


def _sum_side(parts: Sequence[_ClassSide], layout: _Layout) -> SideSums:
    repeats, groups = layout.repeats, layout.groups
    joules, seconds = np.zeros((repeats, groups)), np.zeros((repeats, groups))
    by_rank = np.zeros((len(layout.row_of), groups))
    by_class = np.zeros((groups, len(layout.classes) + 1))
    moved, memory, operators, launched = np.zeros((4, groups))
    for part in parts:
        local, member = np.unique(part.group, return_inverse=True)
        kind = _kinds(part.record.classes, layout.classes)
        ranks = 0.0  # how many, mean over the repeats
        for repeat in range(repeats):
            chosen = [i for i, s in enumerate(part.samples) if s.repeat == repeat]
            if not chosen:
                continue
            samples = [part.samples[i] for i in chosen]
            # a rank's traced steps are averaged, then its repeats
            weight = part.shares[chosen] / np.array([layout.steps[s.repeat, s.ranks] for s in samples])
            share = weight / np.array([layout.seen[s.ranks] for s in samples])
            spent = np.stack([part.costs[i].seconds for i in chosen])
            amounts = region_sums(member, len(local), spent.astype(np.float64))
            seconds[repeat, local] += weight @ amounts
            np.add.at(by_class, (part.group, kind), share @ spent.astype(np.float64))
            if layout.joules:
                burnt = [j for i in chosen if (j := part.costs[i].joules) is not None]
                amounts = region_sums(member, len(local), np.stack(burnt, dtype=np.float64))
                joules[repeat, local] += weight @ amounts
            rows = np.array([layout.row_of[s.ranks] for s in samples])
            np.add.at(by_rank, (rows[:, None], local[None, :]), share[:, None] * amounts)
            ranks += float(share.sum())
        record = part.record
        moved += ranks * np.bincount(part.group, weights=record.moved_bytes, minlength=groups)
        memory += ranks * np.bincount(part.group, weights=record.memory.made_bytes, minlength=groups)
        operators += ranks * np.bincount(part.group, minlength=groups)
        if record.launched is not None:
            launched += ranks * np.bincount(part.group, weights=record.launched, minlength=groups)
    return SideSums(
        joules=joules if layout.joules else None,
        seconds=seconds,
        by_rank=by_rank,
        class_seconds=by_class[:, :-1],
        bytes=moved,
        memory=memory,
        operators=operators,
        launched=launched if all(part.record.launched is not None for part in parts) else None,
    )


def _kinds(of_operator: Sequence[str], classes: Sequence[str]) -> Ints:
    """(operators,) column of each operator's class, a last one for those that have none."""
    column = {name: i for i, name in enumerate(classes)}
    return np.array([column.get(name, len(column)) for name in of_operator], np.int64)
