"""Step 5 of the matcher: cut both graphs at the matched values.

An operator belongs to the region of the matched values it works towards: its own matched outputs and, through
unmatched outputs, what their readers work towards, less what an earlier of those already leads to. Operators
that work towards several matched values make them one region. Regions are equal work on both sides by
construction: the same values go in, the same values come out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.cycles import quotient_edges
from magneton_dist.matching.leftovers import leftovers
from magneton_dist.matching.sides import Pairing, Side


@dataclass(frozen=True, eq=False)
class Regions:
    """Region of every operator, numbered by first operator; every operator has exactly one.

    The first `matched` regions make matched values on both sides; the others are left over.
    """

    a: Ints
    b: Ints
    matched: int
    count: int

    def mirrored(self) -> Regions:
        """The same with a and b exchanged, numbered by b's first operators."""
        inside_a, inside_b = self.a < self.matched, self.b < self.matched
        return number_regions(
            np.where(inside_b, self.b, -1),
            np.where(inside_a, self.a, -1),
            np.where(inside_b, -1, self.b),
            np.where(inside_a, -1, self.a),
        )


def cut_regions(pairing: Pairing) -> Regions:
    """Assign every operator of both graphs to a region. The quotient of `pairing` must be acyclic."""
    a, b = pairing.a, pairing.b
    base = a.graph.n_ops + b.graph.n_ops
    n_ids = len(pairing.confidence)
    sources, targets, nodes = quotient_edges(pairing)
    order = _topological_order(sources, targets, nodes)
    frontier = _frontiers(order, sources, targets, nodes, base)

    rows = [(f[0], m) for f in frontier for m in f[1:]]
    joined = np.array(rows, np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(joined), bool), (joined[:, 0], joined[:, 1])), shape=(n_ids, n_ids))
    region_of_id = connected_components(graph, directed=False)[1] if n_ids else np.zeros(0, np.int64)
    region = np.array([region_of_id[f[0]] if f else -1 for f in frontier], np.int64)

    # Identity operators (views, copies) of a matched value go with that value: extra copies show there.
    skip = np.concatenate([_identity_id(a), _identity_id(b)])
    region[skip >= 0] = region_of_id[skip[skip >= 0]]
    ra, rb = region[: a.graph.n_ops], region[a.graph.n_ops :]
    for side, of_op in ((a, ra), (b, rb)):
        _follow_inputs(side, of_op)
    return number_regions(ra, rb, *leftovers(a, b, ra, rb))


def _follow_inputs(side: Side, region: Ints) -> None:
    """An operator that leads nowhere and makes nothing new (a view, a read by the host) goes with its input."""
    graph = side.graph
    producer = graph.producers()
    made = np.diff(graph.outputs.start) > 0
    for op in np.nonzero((region < 0) & (side.groups.identity | ~made))[0]:
        writers = producer[graph.inputs[int(op)]]
        writers = writers[writers >= 0]
        if len(writers):
            region[op] = region[writers[0]]


def _identity_id(side: Side) -> Ints:
    """(operators,) the id that an identity operator passes on, -1 for all others."""
    out = np.full(side.graph.n_ops, -1, np.int64)
    start, flat = side.graph.outputs.start, side.graph.outputs.flat
    ops = np.nonzero(side.groups.identity)[0]
    out[ops] = side.id_of_value[flat[start[ops]]]
    return out


def _topological_order(sources: Ints, targets: Ints, nodes: int) -> list[int]:
    missing = np.bincount(targets, minlength=nodes).tolist()
    start = np.searchsorted(sources, np.arange(nodes + 1)).tolist()
    flat = targets.tolist()
    order = [n for n in range(nodes) if not missing[n]]
    for n in order:  # grows while it is walked
        for m in flat[start[n] : start[n + 1]]:
            missing[m] -= 1
            if not missing[m]:
                order.append(m)
    assert len(order) == nodes, "the quotient has a cycle: drop_crossing_pairs must run first"
    return order


def _frontiers(order: list[int], sources: Ints, targets: Ints, nodes: int, base: int) -> list[tuple[int, ...]]:
    """Per operator the matched ids it works towards.

    Reachability between ids is a bit set per node, late ids in the low bits so that the sets of late nodes
    are short; a node's set is freed when its last predecessor has read it.
    """
    start = np.searchsorted(sources, np.arange(nodes + 1)).tolist()
    flat = targets.tolist()
    readers = np.bincount(targets, minlength=nodes).tolist()
    n_ids = nodes - base
    bit = [0] * n_ids  # bit index; the last id in topological order has bit 0
    place = n_ids
    for n in order:
        if n >= base:
            place -= 1
            bit[n - base] = place
    reach = [0] * nodes
    below = [0] * n_ids
    frontier: list[tuple[int, ...]] = [()] * nodes
    for n in reversed(order):
        successors = flat[start[n] : start[n + 1]]
        mask = 0
        for m in successors:
            mask |= reach[m]
        if n >= base:
            below[n - base] = mask
            reach[n] = mask | (1 << bit[n - base])
        else:
            reach[n] = mask
            frontier[n] = _prune(successors, frontier, bit, below, base)
        for m in successors:
            readers[m] -= 1
            if not readers[m]:
                reach[m] = 0
    return frontier[:base]


def _prune(
    successors: list[int], frontier: list[tuple[int, ...]], bit: list[int], below: list[int], base: int
) -> tuple[int, ...]:
    direct = {m - base for m in successors if m >= base}
    towards = set(direct)
    for m in successors:
        if m < base:
            towards.update(frontier[m])
    if len(towards) < 2:
        return tuple(towards)
    kept: list[int] = []
    covered = 0
    for i in sorted(towards, key=lambda i: -bit[i]):
        if i in direct or not (covered >> bit[i]) & 1:
            kept.append(i)
            covered |= below[i]
    return tuple(kept)


def number_regions(ra: Ints, rb: Ints, la: Ints, lb: Ints) -> Regions:
    """Number regions densely: matched ones in order of a's (then b's) first operator, then the left over."""
    matched = _order_of_first(np.concatenate([ra, rb]))
    n = len(matched)
    left = _order_of_first(np.concatenate([la, lb]))
    out = []
    for region, rest in ((ra, la), (rb, lb)):
        numbered = np.full(len(region), -1, np.int64)
        inside = region >= 0
        numbered[inside] = _lookup(matched, region[inside])
        numbered[~inside] = n + _lookup(left, rest[~inside])
        out.append(numbered)
    return Regions(out[0], out[1], n, n + len(left))


def _order_of_first(values: Ints) -> Ints:
    """Distinct non-negative values in order of first appearance."""
    values = values[values >= 0]
    distinct, first = np.unique(values, return_index=True)
    in_order: Ints = distinct[np.argsort(first, kind="stable")]
    return in_order


def _lookup(order: Ints, values: Ints) -> Ints:
    place = np.zeros(int(order.max(initial=-1)) + 1, np.int64)
    place[order] = np.arange(len(order))
    return place[values]
