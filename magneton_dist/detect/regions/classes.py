"""One match per class of ranks: which operators of two variants' traced steps form regions.

Ranks whose traced steps have the same structure on both sides are a class; one of them stands for all. Where it
traced several steps, only values that are equal in every one of them match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from magneton_dist.detect.regions.records import Load, StepRecord
from magneton_dist.detect.regions.representatives import (
    Assignment,
    Found,
    PairStep,
    match_class,
    match_records,
    spread,
)
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.frontier import Match
from magneton_dist.matching.ranks import RankPair, corresponding

MOST_CLASSES = 32  # matched; ranks of further ones are left out and counted
# Operators to match, at 60 us each: with fewer, starting other processes (3 s) takes longer than two cores save.
WORTH_SHARING = 150_000

# Calls a function, which lies in a module, with each item, and gives the results in their order.
RunAll = Callable[[Callable[[Assignment], Found], Sequence[Assignment]], Iterable[Found]]


@dataclass(frozen=True)
class Sample:
    """One traced step of a pair of ranks in one repeat of both variants."""

    repeat: int
    ranks: RankPair
    order: int  # 0 for the first traced step
    a: TracedStep
    b: TracedStep

    @property
    def step(self) -> PairStep:
        """Which it is, without what it cost."""
        return PairStep(self.repeat, self.ranks, self.a.step, self.b.step)


@dataclass(frozen=True, eq=False)
class ClassPair:
    """The samples of one class and how their operators match.

    `a`, `b`: the representative's records of its first traced step, which is the first sample.
    """

    samples: list[Sample]
    a: StepRecord
    b: StepRecord
    found: Found

    @property
    def match(self) -> Match:
        """Of a and b."""
        return self.found.match

    @property
    def region_a(self) -> Ints:
        """(operators,) region of each operator of a."""
        return self.match.regions.a

    @property
    def region_b(self) -> Ints:
        """(operators,) region of each operator of b."""
        return self.match.regions.b

    @property
    def count(self) -> int:
        """Number of regions; the first `match.regions.matched` make matched values."""
        return self.match.regions.count

    @cached_property
    def members(self) -> tuple[list[list[int]], list[list[int]]]:
        """Operators of each region, in order of execution, of a and of b."""
        return _members(self.region_a, self.count), _members(self.region_b, self.count)


def samples_of(a: VariantRuns, b: VariantRuns) -> list[Sample]:
    """Pair repeat with repeat, rank with rank (`matching.ranks.corresponding`), traced step with traced step.

    Where work is spread over other numbers of ranks, all of them must have traced a step.
    """
    found = []
    for repeat, (run_a, run_b) in enumerate(zip(a.repeats, b.repeats, strict=True)):
        steps_a, steps_b = ({rank: s.traced for rank, s in run.items()} for run in (run_a, run_b))
        for ranks in corresponding(a.world_size, b.world_size):
            others_a, others_b = ranks.others
            both = zip(steps_a.get(ranks.a, ()), steps_b.get(ranks.b, ()), strict=False)
            found += [
                Sample(repeat, ranks, order, one, other)
                for order, (one, other) in enumerate(both)
                if all(one.step in _numbers(steps_a.get(rank, ())) for rank in others_a)
                and all(other.step in _numbers(steps_b.get(rank, ())) for rank in others_b)
            ]
    return found


def _numbers(steps: Sequence[TracedStep]) -> set[int]:
    return {step.step for step in steps}


def match_classes(
    samples: Sequence[Sample], names: tuple[str, str], load: Load, run_all: RunAll | None = None
) -> tuple[list[ClassPair], int]:
    """Match each class once.

    Args:
        samples: from `samples_of`.
        names: of the two variants.
        load: a traced step of a rank.
        run_all: matches several classes at once, in other processes, where there is enough to match; default: one after
            the other, in this one.

    Returns:
        the classes, those of most samples first, and how many samples are in classes beyond `MOST_CLASSES`.
    """
    by_class: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        by_class.setdefault((sample.a.structure, sample.b.structure), []).append(sample)
    ordered = sorted(by_class.values(), key=len, reverse=True)
    left_out = sum(len(of_class) for of_class in ordered[MOST_CLASSES:])
    del ordered[MOST_CLASSES:]
    assignments = [_assignment(of_class, names, load) for of_class in ordered]
    operators = sum(_operators(of_class) for of_class in ordered)
    if run_all is None or len(assignments) < 2 or operators < WORTH_SHARING:
        done = [match_records(assignment) for assignment in assignments]
    else:
        results = zip(assignments, run_all(match_class, assignments), strict=True)
        done = [(found, of.record(0, of.steps[0]), of.record(1, of.steps[0])) for of, found in results]
    return [ClassPair(of_class, a, b, found) for of_class, (found, a, b) in zip(ordered, done, strict=True)], left_out


def _of_representative(samples: list[Sample]) -> list[Sample]:
    """All traced steps of the first pair of ranks."""
    first = samples[0]
    return [s for s in samples if (s.repeat, s.ranks) == (first.repeat, first.ranks)]


def _operators(samples: list[Sample]) -> int:
    return sum(len(s.a.seconds) + len(s.b.seconds) for s in _of_representative(samples))


def _assignment(samples: list[Sample], names: tuple[str, str], load: Load) -> Assignment:
    first = samples[0]
    others = [s for s in samples if s.repeat == first.repeat and s.ranks != first.ranks and s.order == first.order]
    return Assignment(names, load, [s.step for s in _of_representative(samples)], [s.step for s in spread(others)])


def _members(region: Ints, count: int) -> list[list[int]]:
    order = np.argsort(region, kind="stable")
    bounds = np.searchsorted(region[order], np.arange(count + 1)).tolist()
    flat = order.tolist()
    return [flat[i:j] for i, j in pairwise(bounds)]
