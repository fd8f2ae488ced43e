"""Many ranks: which do each other's work, one match for all that are alike, and what shards have in common.

Ranks of one position in a job call the same operators on the same sizes (`steps.structure`), so the regions
found on one hold on all; that is checked on a few others by their own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from scipy.sparse import csr_array

from magneton_dist.matching.arrays import Bools, Floats, Ints
from magneton_dist.matching.fingerprints import moment_distance
from magneton_dist.matching.frontier import Match
from magneton_dist.matching.graph import FEATURES, UNKNOWN, MatchGraph
from magneton_dist.matching.steps import by_first_use


@dataclass(frozen=True, slots=True)
class RankPair:
    """A rank of a and a rank of b that do the same work, or parts of it.

    Attributes:
        a, b: the ranks.
        share_a, share_b: of each one's work that belongs to this pair; the pairs of a rank add up to 1.
        block_a, block_b: the ranks that the work is spread over on either side; only a and b themselves where both
            jobs have as many ranks.
    """

    a: int
    b: int
    share_a: float
    share_b: float
    block_a: range
    block_b: range

    @property
    def number(self) -> int:
        """The rank in the larger job: no other pair has it."""
        return max(self.a, self.b)

    @property
    def others(self) -> tuple[list[int], list[int]]:
        """The other ranks of both blocks."""
        return [r for r in self.block_a if r != self.a], [r for r in self.block_b if r != self.b]


def corresponding(ranks_a: int, ranks_b: int) -> list[RankPair]:
    """Pair the ranks of two jobs, in order, each rank of the larger job once.

    With as many ranks, by number. Else neighbours do the work of neighbours: shards of a tensor-parallel layer are
    the innermost dimension of a mesh (Megatron-LM, `init_device_mesh`), so that 4 ranks against 2 are two of one
    side for one of the other.
    """
    most, blocks = max(ranks_a, ranks_b), gcd(ranks_a, ranks_b)
    number = np.arange(most)
    a, b, block = number * ranks_a // most, number * ranks_b // most, number * blocks // most
    share_a, share_b = 1.0 / np.bincount(a)[a], 1.0 / np.bincount(b)[b]
    of_a, of_b = ranks_a // blocks, ranks_b // blocks
    return [
        RankPair(i, j, x, y, range(k * of_a, (k + 1) * of_a), range(k * of_b, (k + 1) * of_b))
        for i, j, x, y, k in zip(*(column.tolist() for column in (a, b, share_a, share_b, block)), strict=True)
    ]


def held_alike(graph: MatchGraph, others: Sequence[MatchGraph], shard: int) -> MatchGraph:
    """`graph` with the kind `shard` for what not all `others`, ranks of the same block, hold bit by bit as well.

    A job of another degree has other shards, and only what is whole can be compared with it: what a collective
    leaves alike on every rank, and what is computed from nothing else.

    Args:
        graph: of one rank.
        others: of other ranks, of the same traced step.
        shard: SHARD_A or SHARD_B, by the side of the comparison.
    """
    part = np.zeros(graph.n_values, bool)
    for other in others:
        part |= ~np.isin(_contents(graph), _contents(other)[other.kind != UNKNOWN])
    part &= graph.kind != UNKNOWN
    return replace(graph, kind=np.where(part, shard, graph.kind), anchor=graph.anchor & ~part)


def _contents(graph: MatchGraph) -> np.ndarray:
    """(values,) a number for the bits of each value and how many there are."""
    return _mixed(graph.checksum, graph.numel)


def _mixed(a: Ints, b: Ints) -> np.ndarray:
    """One number for two."""
    mixed: np.ndarray = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64)
    return mixed


def split_otherwise(a: MatchGraph, b: MatchGraph, matched: Match) -> Bools:
    """(regions,) left over from parameters or their states that the ranks of the other job hold in other parts.

    One rank's shard of an optimizer step has no counterpart on one rank of a job that does not shard, or otherwise.
    """
    regions, ids = matched.regions, (matched.value_a, matched.value_b)
    split = np.zeros(regions.count, bool)
    for graph, other, region, of_value in ((a, b, regions.a, ids[0]), (b, a, regions.b, ids[1])):
        named = _named(other)
        in_parts = _named(graph) & np.isin(graph.slot, other.slot[named])
        in_parts &= ~np.isin(name_and_size(graph), name_and_size(other)[named])
        on_parts, tainted = np.zeros(graph.n_ops, bool), in_parts.tolist()
        inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
        for op in range(graph.n_ops) if in_parts.any() else ():
            if any(tainted[v] for v in inputs[op]):
                on_parts[op] = True
                for v in outputs[op]:
                    tainted[v] = of_value[v] < 0
        split[region[on_parts]] = True
    split[: regions.matched] = False
    return split


def _named(graph: MatchGraph) -> Bools:
    """(values,) given to the step under a name."""
    return np.asarray((graph.slot >= 0) & (graph.producers() < 0))


def name_and_size(graph: MatchGraph) -> np.ndarray:
    """(values,) a number for the name of each value and how many elements it has."""
    return _mixed(graph.slot, graph.numel)


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
