"""The frontier matcher: which operators of two graphs do the same work, for whole training steps.

Near-linear in operators. Follows the idea of differential matching by tensors (Magneton, arXiv 2512.08365,
section 4) with another algorithm: its dominator recursion (`matching.dominators`) finds no cut in a training
graph, whose forward activations are read again by the backward pass.

Labels (`labels`), groups of identical values (`groups`), pairs (`pairing`), a check that they do not cross
(`cycles`), regions between them (`regions`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

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

    def mirrored(self) -> Match:
        """The same with a and b exchanged."""
        return Match(self.regions.mirrored(), self.value_b, self.value_a, self.confidence, self.dropped)


def match(
    a: MatchGraph, b: MatchGraph, eps: float, cut: Callable[[Pairing], Regions] = cut_regions
) -> Match:
    """Match two graphs.

    Args:
        a, b: the graphs; execution order must be a topological order.
        eps: relative tolerance of features, 1e-3 for fp32 and TF32, 1e-2 where bf16 takes part.
        cut: how to cut regions at the matched values; `matching.dominators.cut_at_dominators` is the paper's.
    """
    # Ties are broken in favour of the first graph: the same one goes first either way, so that results mirror.
    if _order(b) < _order(a):
        return match(b, a, eps, cut).mirrored()
    with _no_collections():
        label_a, label_b = label_values(a, b, eps)
        side_a, side_b = Side(a, group_values(a)), Side(b, group_values(b))
        pairing = pair_groups(side_a, side_b, label_a, label_b, eps)
        dropped = drop_crossing_pairs(pairing)
        regions = cut(pairing)
        confidence = np.array(pairing.confidence, np.int64)
        return Match(regions, side_a.id_of_value, side_b.id_of_value, confidence, dropped)


def _order(graph: MatchGraph) -> tuple[int, int, bytes]:
    numbers = blake2b(graph.features.tobytes(), digest_size=8)
    numbers.update(graph.checksum.tobytes())
    return graph.n_ops, graph.n_values, numbers.digest()


@contextmanager
def _no_collections() -> Iterator[None]:
    """The matcher makes many small objects and no cycles: collections would find nothing and cost a third."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def region_confidence(matched: Match, a: MatchGraph, b: MatchGraph) -> Floats:
    """(regions,) Jaccard similarity of what each region reads from outside on the two sides, by matched ids.

    A value that was given to one side and has no match counts against it: results are equal in spite of it.
    1 where neither side reads any.
    """
    n = matched.ids + a.n_values + b.n_values
    reads_a = _read_from_outside(a, matched.regions.a, matched.value_a, n, matched.ids)
    reads_b = _read_from_outside(b, matched.regions.b, matched.value_b, n, matched.ids + a.n_values)
    shared, total = (
        np.bincount(reads // max(1, n), minlength=matched.regions.count)
        for reads in (np.intersect1d(reads_a, reads_b), np.union1d(reads_a, reads_b))
    )
    out: Floats = np.ones(matched.regions.count)
    np.divide(shared, total, out=out, where=total > 0)
    return out


def _read_from_outside(graph: MatchGraph, region: Ints, ids: Ints, n: int, base: int) -> Ints:
    """Distinct pairs of a region and what it reads from outside, as region * n + item.

    An item is an id, or `base` and the number of a value that was given and is unmatched.
    """
    producer = graph.producers()
    reader, read = graph.inputs.rows, graph.inputs.flat
    from_region = np.where(producer[read] >= 0, region[producer[read]], -1)
    item = np.where(ids[read] >= 0, ids[read], base + read)
    counts = (ids[read] >= 0) | ((producer[read] < 0) & graph.anchor[read])
    outside = counts & (from_region != region[reader])
    return np.unique(region[reader[outside]] * n + item[outside])
