"""One match per class of ranks: which operators of two variants' traced steps form regions.

Ranks whose traced steps have the same structure on both sides are a class; one of them stands for all. Where a
class traced several steps, its regions are the finest that hold in every one of them: two operators that any
step puts into one region are in one region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.arrays import Bools, Floats, Ints
from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.recorded import tolerance

MOST_CLASSES = 32  # matched; ranks of further ones are left out and counted

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
        a, b: the representative's records.
        match: of these two.
        region_a, region_b: (operators,) region of each, in all steps alike.
        matched: (regions,) the region makes matched values; else it is left over.
        confidence: (regions,) how alike what both sides read is.
    """

    samples: list[Sample]
    a: StepRecord
    b: StepRecord
    match: Match
    region_a: Ints
    region_b: Ints
    matched: Bools
    confidence: Floats

    @property
    def count(self) -> int:
        """Number of regions."""
        return len(self.matched)


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
    of_representative = [s for s in samples if (s.repeat, s.rank) == (first.repeat, first.rank)]
    records, matches = [], []
    for s in of_representative:
        a, b = load(names[0], s.repeat, s.rank, s.a.step), load(names[1], s.repeat, s.rank, s.b.step)
        records.append((a, b))
        matches.append(match(a.step.graph, b.step.graph, tolerance(a.step, b.step)))
    (a, b), found = records[0], matches[0]
    certain = region_confidence(found, a.step.graph, b.step.graph)
    regions = found.regions
    if len(matches) == 1:
        is_matched = np.arange(regions.count) < regions.matched
        return ClassPair(samples, a, b, found, regions.a, regions.b, is_matched, certain)
    region_a, region_b, count, source = joined_regions(matches)
    matched, confidence = np.zeros(count, bool), np.ones(count)
    np.logical_or.at(matched, source, np.arange(regions.count) < regions.matched)
    np.minimum.at(confidence, source, certain)
    return ClassPair(samples, a, b, found, region_a, region_b, matched, confidence)


def joined_regions(matches: list[Match]) -> tuple[Ints, Ints, int, Ints]:
    """The finest regions that contain whole regions of every match of the same two structures.

    Returns:
        region of a's and b's operators, the number of regions, and into which one each region of the first
        match went.
    """
    first = matches[0].regions
    offset = first.count
    edges = []
    for other in (m.regions for m in matches[1:]):
        for mine, theirs in ((first.a, other.a), (first.b, other.b)):
            edges.append(np.stack([mine, offset + theirs]))
        offset += other.count
    link = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(link.shape[1], bool), (link[0], link[1])), shape=(offset, offset))
    component = connected_components(graph, directed=False)[1].astype(np.int64)[: first.count]
    distinct, source = np.unique(component, return_inverse=True)
    return source[first.a], source[first.b], len(distinct), source


