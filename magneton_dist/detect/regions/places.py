"""Identical regions, which repeat over layers and ranks, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from magneton_dist.detect.regions.classes import ClassPair
from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.matching.arrays import Ints


@dataclass(eq=False)
class Group:
    """Regions whose operators have the same names, phases, tensors and source lines on both sides.

    Attributes:
        matched: they make matched values; else they are left over.
        split: left over from parameters that are in other parts on the other side.
        pair, region: one of them: which class, and which region there.
        places: how many a rank has, at most.
        steps: traced steps (0 is a rank's first) in which there are any.
        confidence: how alike what both sides read is, mean over the regions.
    """

    matched: bool
    split: bool
    pair: ClassPair
    region: int
    places: int = 0
    steps: set[int] = field(default_factory=set)
    confidence: float = 0.0


@dataclass(frozen=True, eq=False)
class Places:
    """Groups of all classes. `of_region`: per class, (regions,) the group of each."""

    groups: list[Group]
    of_region: list[Ints]


def group_regions(pairs: Sequence[ClassPair]) -> Places:
    """Group the regions of all classes."""
    numbers: dict[object, int] = {}
    signatures: dict[object, int] = {}
    groups: list[Group] = []
    members: list[int] = []
    of_region = []
    for pair in pairs:
        ops_a, ops_b = pair.members
        sign_a, sign_b = _numbered(pair.a, signatures), _numbered(pair.b, signatures)
        mine = np.empty(pair.count, np.int64)
        for region in range(pair.count):
            key = (
                region < pair.match.regions.matched,
                bool(pair.found.split[region]),
                tuple(sign_a[op] for op in ops_a[region]),
                tuple(sign_b[op] for op in ops_b[region]),
            )
            number = numbers.setdefault(key, len(groups))
            if number == len(groups):
                groups.append(Group(key[0], key[1], pair, region))
                members.append(0)
            mine[region] = number
        of_region.append(mine)
        steps = {sample.order for sample in pair.samples}
        for number, count in zip(*np.unique(mine, return_counts=True), strict=True):
            groups[number].places = max(groups[number].places, int(count))
            groups[number].steps |= steps
        for number, confidence in zip(mine.tolist(), pair.found.confidence.tolist(), strict=True):
            groups[number].confidence += confidence
            members[number] += 1
    for group, count in zip(groups, members, strict=True):
        group.confidence /= count
    return Places(groups, of_region)


def _numbered(record: StepRecord, numbers: dict[object, int]) -> list[int]:
    """(operators,) the same number for the same signature."""
    return [numbers.setdefault(signature, len(numbers)) for signature in record.signatures]
