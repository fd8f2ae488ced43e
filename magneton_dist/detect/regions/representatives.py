"""A class of ranks, matched on one pair of them that stands for all.

What is to be done (`Assignment`) and what comes of it (`Found`) are small, so that another process can do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from magneton_dist.detect.regions.records import Load, StepRecord
from magneton_dist.matching.arrays import Bools, Floats
from magneton_dist.matching.divergence import divergences
from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.graph import SHARD_A, SHARD_B, MatchGraph
from magneton_dist.matching.ranks import Canonical, RankPair, held_alike, split_otherwise
from magneton_dist.matching.recorded import StepGraph, tolerance
from magneton_dist.matching.steps import in_every_step

T = TypeVar("T")
Side = Literal[0, 1]

ASKED = 3  # other ranks of a class, and of a block, that are looked at
PARTING_SHARE = 0.1  # of the elements that a step computes must be lost for it to be worth a word
MOST_PARTINGS = 3
_FROM_OUTSIDE = ("parameters", "data", "random")  # reasons that lie before the step


@dataclass(frozen=True)
class PairStep:
    """A traced step of a pair of ranks: numbers `a` and `b` of their runs."""

    repeat: int
    ranks: RankPair
    a: int
    b: int


@dataclass(frozen=True)
class Assignment:
    """A class to be matched.

    Attributes:
        names: of the variants.
        load: a traced step of a rank.
        steps: all traced steps of the pair of ranks that stands for the class.
        checked: a step of other pairs, on which the match should hold as well.
    """

    names: tuple[str, str]
    load: Load
    steps: list[PairStep]
    checked: list[PairStep]

    def record(self, side: Side, step: PairStep, rank: int | None = None) -> StepRecord:
        """Of the rank of that side, or of another one of its block."""
        own, number = (step.ranks.b, step.b) if side else (step.ranks.a, step.a)
        return self.load(self.names[side], step.repeat, own if rank is None else rank, number)

    def records(self, side: Side) -> list[StepRecord]:
        """Of `steps`."""
        return [self.record(side, step) for step in self.steps]


@dataclass(frozen=True, eq=False)
class Found:
    """How the operators of a class match.

    Attributes:
        match: of the first traced step, in all steps alike.
        confidence: (regions,) how alike what both sides read is.
        parting: in words, where and why nothing matches any more.
        fed_apart: the runs part at what they were given: parameters, data or random numbers.
        split: (regions,) left over from parameters that are in other parts on the other side.
        agreement: share of the matched values that are equal on other ranks of the class too, the least of those
            asked; 1 where there is no other.
    """

    match: Match
    confidence: Floats
    parting: list[str]
    fed_apart: bool
    split: Bools
    agreement: float


def match_class(assignment: Assignment) -> Found:
    """Match the class."""
    return match_records(assignment)[0]


def match_records(assignment: Assignment) -> tuple[Found, StepRecord, StepRecord]:
    """Match the class; also the records of the first traced step, of a and of b."""
    of_a, of_b = assignment.records(0), assignment.records(1)
    eps = max(tolerance(one.step, other.step) for one, other in zip(of_a, of_b, strict=True))
    a, b = _whole(assignment, 0, of_a), _whole(assignment, 1, of_b)
    found = match(a, b, eps)
    canonical, agreements = Canonical.of(found, a, b), [1.0]
    for step in assignment.checked:
        one, other = assignment.record(0, step), assignment.record(1, step)
        agreements.append(canonical.agreement(one.step.graph, other.step.graph, eps))
    parting, fed_apart = _parting(assignment, (of_a[0].step, of_b[0].step), (a, b), found, eps)
    confidence, split = region_confidence(found, a, b), split_otherwise(a, b, found)
    return Found(found, confidence, parting, fed_apart, split, min(agreements)), of_a[0], of_b[0]


def _whole(assignment: Assignment, side: Side, records: Sequence[StepRecord]) -> MatchGraph:
    """The traced steps of the representative as one graph; what is a shard in it is marked as one."""
    graphs = []
    others = spread(assignment.steps[0].ranks.others[side])
    for step, record in zip(assignment.steps, records, strict=True):
        of_others = [assignment.record(side, step, rank).step.graph for rank in others]
        graphs.append(held_alike(record.step.graph, of_others, SHARD_B if side else SHARD_A))
    return in_every_step(graphs)


def _parting(
    assignment: Assignment, steps: tuple[StepGraph, StepGraph], wholes: tuple[MatchGraph, MatchGraph], found: Match,
    eps: float,
) -> tuple[list[str], bool]:
    """Where the runs part for good, in words, and whether it is at what they were given."""
    a, b = (replace(step, graph=whole) for step, whole in zip(steps, wholes, strict=True))
    seen = [d for d in divergences(a, b, found, eps) if d.share >= PARTING_SHARE]
    texts = []
    if any(assignment.steps[0].ranks.others):  # what shards compute has no counterpart, which is no parting
        seen = [d for d in seen if d.reason in _FROM_OUTSIDE]
        texts = [
            f"each rank of {name} reads data of its own: only what is summed over its ranks can match"
            for name, step, whole in zip(assignment.names, steps, wholes, strict=True)
            if _data_apart(step, whole)
        ]
    return [*texts, *(d.text for d in seen)][:MOST_PARTINGS], any(d.reason in _FROM_OUTSIDE for d in seen)


def _data_apart(step: StepGraph, whole: MatchGraph) -> bool:
    """Is what the step was given as data other data on every rank?"""
    given = (step.values["role"] == "input").fill_null(False).to_numpy() & (whole.producers() < 0)
    said = given & step.graph.anchor
    return bool(said.any() and not (said & whole.anchor).any())


def spread(others: Sequence[T]) -> list[T]:
    """A few of them, spread over all."""
    places = np.linspace(0, len(others) - 1, min(ASKED, len(others))).astype(int)
    return [others[place] for place in places]
