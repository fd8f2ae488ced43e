"""Many ranks: one match for each pair of structures, its regions reused by every rank of that pair.

Ranks of one position in a job call the same operators on the same sizes (`steps.structure`), so the regions
found on one hold on all; that is checked on a few others by their own numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.fingerprints import moment_distance
from magneton_dist.matching.frontier import Match
from magneton_dist.matching.graph import FEATURES, UNKNOWN, MatchGraph
from magneton_dist.matching.steps import by_first_use

SAMPLES = 3
MAD_TO_SIGMA = 1.4826  # of a normal distribution

# What every rank of the group has alike afterwards, whatever the size of the group.
GATHERED = frozenset(
    {
        "allreduce_", "all_reduce", "all_reduce_", "allreduce_coalesced_", "all_reduce_coalesced", "broadcast_",
        "broadcast", "allgather_", "_allgather_base_", "all_gather_into_tensor", "all_gather_into_tensor_out",
        "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced_", "wait_tensor",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ClassPair:
    """Ranks of a and of b that correspond, all of one structure on either side."""

    structure_a: str
    structure_b: str
    ranks: tuple[tuple[int, int], ...]  # (rank of a, rank of b), ascending

    @property
    def representative(self) -> tuple[int, int]:
        """The ranks to match."""
        return self.ranks[0]

    def samples(self) -> tuple[tuple[int, int], ...]:
        """Other ranks on which the match is to be checked, spread over the class."""
        others = self.ranks[1:]
        places = np.unique(np.linspace(0, len(others) - 1, min(SAMPLES, len(others))).astype(int))
        return tuple(others[place] for place in places)


def class_pairs(
    structures_a: Mapping[int, str],
    structures_b: Mapping[int, str],
    corresponding: Iterable[tuple[int, int]] | None = None,
) -> list[ClassPair]:
    """Group ranks by the structures of both sides, in order of their first rank.

    Args:
        structures_a, structures_b: structure of every rank.
        corresponding: which rank of b does the work of which rank of a; by default the one of the same number.
    """
    if corresponding is None:
        corresponding = ((rank, rank) for rank in sorted(structures_a.keys() & structures_b.keys()))
    classes: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for rank_a, rank_b in corresponding:
        classes[structures_a[rank_a], structures_b[rank_b]].append((rank_a, rank_b))
    return [ClassPair(*structures, tuple(ranks)) for structures, ranks in classes.items()]


@dataclass(frozen=True, eq=False)
class Canonical:
    """A match with values by order of first use, so that it holds for every rank of the class."""

    matched: Match
    first_a: Ints  # (ids,) place of one value of each id in a's order of first use
    first_b: Ints

    @classmethod
    def of(cls, matched: Match, a: MatchGraph, b: MatchGraph) -> Canonical:
        """Of the match of two representatives."""
        return cls(
            matched,
            _one_of_each(matched.value_a[by_first_use(a)[0]], matched.ids),
            _one_of_each(matched.value_b[by_first_use(b)[0]], matched.ids),
        )

    def agreement(self, a: MatchGraph, b: MatchGraph, eps: float) -> float:
        """Share of the matched values that are equal in another pair of ranks as well, 1 without any.

        `a`, `b` must have the structures of the class. Values that say too little are not asked.
        """
        values_a, values_b = by_first_use(a)[0][self.first_a], by_first_use(b)[0][self.first_b]
        # a whole and its parts share an id: only values of one size can be compared
        asked = a.anchor[values_a] & b.anchor[values_b] & (a.numel[values_a] == b.numel[values_b])
        if not asked.any():
            return 1.0
        features_a, features_b = a.features[values_a[asked], :FEATURES], b.features[values_b[asked], :FEATURES]
        return float((moment_distance(features_a, features_b) <= eps).mean())


def _one_of_each(ids: Ints, count: int) -> Ints:
    """(count,) the first place of each id."""
    out = np.zeros(count, np.int64)
    places = np.nonzero(ids >= 0)[0][::-1]
    out[ids[places]] = places
    return out


def gathered_only(graph: MatchGraph) -> MatchGraph:
    """`graph` as seen by a job of another degree of tensor parallelism.

    Shards differ between degrees, results of collectives that leave the same on every rank do not: only those
    can be matched.
    """
    seen = np.zeros(graph.n_values, bool)
    for op, name in enumerate(graph.names):
        if name in GATHERED:
            seen[graph.outputs[op]] = True
    return replace(graph, kind=np.where(seen, graph.kind, UNKNOWN), anchor=graph.anchor & seen)


def region_sums(region: Ints, count: int, per_op: Floats) -> Floats:
    """(ranks, count) sums over each region's operators.

    Args:
        region: (operators,) region of every operator, the same for all ranks of a class.
        count: number of regions.
        per_op: (ranks, operators) joules, seconds or bytes.
    """
    n = len(region)
    ones = csr_array((np.ones(n), (region, np.arange(n))), shape=(count, n))
    sums: Floats = (ones @ per_op.T).T
    return sums


@dataclass(frozen=True, eq=False)
class Spread:
    """Of every region, over ranks: b less a."""

    total: Floats  # (regions,) sum over ranks
    median: Floats  # (regions,)
    deviation: Floats  # (regions,) robust standard deviation: 1.4826 times the median absolute deviation
    outliers: list[tuple[int, int]]  # (place of the rank, region) far from the other ranks


def spread(sums_a: Floats, sums_b: Floats, far: float = 6.0) -> Spread:
    """How the differences of (ranks, regions) sums are spread over ranks.

    Args:
        sums_a, sums_b: sums of corresponding ranks.
        far: distance from the median, in robust standard deviations, from which a rank is an outlier.
    """
    difference = sums_b - sums_a
    median = np.median(difference, axis=0)
    distance = np.abs(difference - median)
    deviation = MAD_TO_SIGMA * np.median(distance, axis=0)
    rank, region = np.nonzero((distance > far * deviation) & (deviation > 0))
    return Spread(
        difference.sum(axis=0), median, deviation, list(zip(rank.tolist(), region.tolist(), strict=True))
    )

