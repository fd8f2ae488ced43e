"""The frontier matcher: which operators of two graphs do the same work, for whole training steps.

Near-linear in operators. Follows the idea of differential matching by tensors (Magneton, arXiv 2512.08365,
section 4) with another algorithm: its dominator recursion (`matching.dominators`) finds no cut in a training
graph, whose forward activations are read again by the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.cycles import drop_crossing_pairs
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.groups import group_values
from magneton_dist.matching.labels import label_values
from magneton_dist.matching.pairing import pair_groups
from magneton_dist.matching.regions import Regions, cut_regions
from magneton_dist.matching.sides import Pairing, Side


@dataclass(frozen=True, eq=False)
class Match:
    """What two graphs have in common.

    `value_a`, `value_b`: matched id of every value, -1 where unmatched. `confidence`: per matched id, 3 (one of
    a kind) down to 0 (similar surroundings). `dropped`: pairs given up because they contradicted others.
    """

    regions: Regions
    value_a: Ints
    value_b: Ints
    confidence: Ints
    dropped: int

    @property
    def ids(self) -> int:
        """Number of matched values."""
        return len(self.confidence)


def match(a: MatchGraph, b: MatchGraph, eps: float) -> Match:
    """Match two graphs.

    Args:
        a, b: the graphs; execution order must be a topological order.
        eps: relative tolerance of features, 1e-3 for fp32 and TF32, 1e-2 where bf16 takes part.
    """
    label_a, label_b = label_values(a, b, eps)
    side_a, side_b = Side(a, group_values(a)), Side(b, group_values(b))
    pairing = pair_groups(side_a, side_b, label_a, label_b, eps)
    dropped = drop_crossing_pairs(pairing)
    regions = cut_regions(pairing)
    return Match(regions, side_a.id_of_value, side_b.id_of_value, np.array(pairing.confidence, np.int64), dropped)


def region_confidence(match_: Match, a: MatchGraph, b: MatchGraph) -> Floats:
    """(regions,) Jaccard similarity of the matched ids that each region reads from outside on the two sides."""
    out = np.zeros(match_.regions.count)
    pairs_a = _read_from_outside(a, match_.regions.a, match_.value_a)
    pairs_b = _read_from_outside(b, match_.regions.b, match_.value_b)
    n = max(1, match_.ids)
    both = np.intersect1d(pairs_a, pairs_b)
    either = np.union1d(pairs_a, pairs_b)
    shared = np.bincount(both // n, minlength=len(out))
    total = np.bincount(either // n, minlength=len(out))
    np.divide(shared, total, out=out, where=total > 0)
    out[total == 0] = 1.0
    return out


def _read_from_outside(graph: MatchGraph, region: Ints, ids: Ints) -> Ints:
    producer = graph.producers()
    reader, read = graph.inputs.rows, graph.inputs.flat
    from_region = np.where(producer[read] >= 0, region[producer[read]], -1)
    outside = (ids[read] >= 0) & (from_region != region[reader])
    n = max(1, int(ids.max(initial=0)) + 1)
    return np.unique(region[reader[outside]] * n + ids[read[outside]])


__all__ = ["Match", "Pairing", "match", "region_confidence"]
