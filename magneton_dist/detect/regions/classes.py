"""One match per class of ranks: which operators of two variants' traced steps form regions.

Ranks whose traced steps have the same structure on both sides are a class; one of them stands for all. Where it
traced several steps, only values that are equal in every one of them match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.divergence import divergences
from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.ranks import Canonical
from magneton_dist.matching.recorded import tolerance
from magneton_dist.matching.steps import in_every_step

MOST_CLASSES = 32  # matched; ranks of further ones are left out and counted
CHECKED = 3  # other ranks of a class on which its match is checked
PARTING_SHARE = 0.1  # of the elements that a step computes must be lost for it to be worth a word
MOST_PARTINGS = 3

# variant, repeat (by position), rank, number of the traced step
Load = Callable[[str, int, int, int], StepRecord]
Key = tuple[str, str]


@dataclass(frozen=True)
class Sample:
    """One traced step of one rank in one repeat of both variants."""

    repeat: int
    rank: int
    order: int  # 0 for the first traced step
    a: TracedStep
    b: TracedStep


@dataclass(frozen=True, eq=False)
class ClassPair:
    """The samples of one class and how their operators match.

    Attributes:
        a, b: the representative's records of its first traced step.
        match: of these two, in all steps alike.
        confidence: (regions,) how alike what both sides read is.
        parting: in words, where and why nothing matches any more.
        agreement: share of the matched values that are equal on other ranks of the class too, the least of those
            asked; 1 where there is no other.
    """

    samples: list[Sample]
    a: StepRecord
    b: StepRecord
    match: Match
    confidence: Floats
    parting: list[str] = field(default_factory=list)
    agreement: float = 1.0

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
    """Pair repeat with repeat, rank with rank, traced step with traced step."""
    found = []
    for repeat, (run_a, run_b) in enumerate(zip(a.repeats, b.repeats, strict=True)):
        for rank in sorted(run_a.keys() & run_b.keys()):
            steps = zip(run_a[rank].traced, run_b[rank].traced, strict=False)
            found += [Sample(repeat, rank, order, one, two) for order, (one, two) in enumerate(steps)]
    return found


def match_classes(samples: list[Sample], names: tuple[str, str], load: Load) -> tuple[list[ClassPair], int]:
    """Match each class once.

    Args:
        samples: from `samples_of`.
        names: of the two variants.
        load: a traced step of a rank.

    Returns:
        the classes, those of most samples first, and how many samples are in classes beyond `MOST_CLASSES`.
    """
    by_class: dict[Key, list[Sample]] = {}
    for sample in samples:
        by_class.setdefault((sample.a.structure, sample.b.structure), []).append(sample)
    ordered = sorted(by_class.values(), key=len, reverse=True)
    left_out = sum(len(of_class) for of_class in ordered[MOST_CLASSES:])
    return [_match_class(of_class, names, load) for of_class in ordered[:MOST_CLASSES]], left_out


def _match_class(samples: list[Sample], names: tuple[str, str], load: Load) -> ClassPair:
    first = samples[0]
    steps = [s for s in samples if (s.repeat, s.rank) == (first.repeat, first.rank)]
    records_a = [load(names[0], s.repeat, s.rank, s.a.step) for s in steps]
    records_b = [load(names[1], s.repeat, s.rank, s.b.step) for s in steps]
    a, b = (in_every_step([r.step.graph for r in records]) for records in (records_a, records_b))
    eps = max(tolerance(one.step, other.step) for one, other in zip(records_a, records_b, strict=True))
    found = match(a, b, eps)
    of_first = records_a[0].step, records_b[0].step
    parting = [d.text for d in divergences(*of_first, found, eps) if d.share >= PARTING_SHARE]
    canonical, agreements = Canonical.of(found, a, b), [1.0]
    for s in _others(samples):
        one, other = load(names[0], s.repeat, s.rank, s.a.step), load(names[1], s.repeat, s.rank, s.b.step)
        agreements.append(canonical.agreement(one.step.graph, other.step.graph, eps))
    return ClassPair(
        samples, records_a[0], records_b[0], found, region_confidence(found, a, b), parting[:MOST_PARTINGS],
        min(agreements),
    )  # fmt: skip


def _others(samples: list[Sample]) -> list[Sample]:
    """A few samples of other ranks in the same repeat, spread over the class."""
    first = samples[0]
    others = [s for s in samples if s.repeat == first.repeat and s.rank != first.rank and s.order == first.order]
    places = np.linspace(0, len(others) - 1, min(CHECKED, len(others))).astype(int)
    return [others[place] for place in places]


def _members(region: Ints, count: int) -> list[list[int]]:
    order = np.argsort(region, kind="stable")
    bounds = np.searchsorted(region[order], np.arange(count + 1)).tolist()
    flat = order.tolist()
    return [flat[i:j] for i, j in pairwise(bounds)]
