"""Regions by Algorithm 1 of Magneton (arXiv 2512.08365, section 4.2): cut at dominators, recurse in between.

An operator that every way from the source to the sink goes through, with a matched result, is a cut point;
cut points of both graphs in the same order split both into segments, and each segment is split again between
its ends. Fast and coarse on a forward pass. A training step has no such operator: what the forward pass
computes is read again by the backward pass.

The paper takes the path in a dominator tree. Here one sweep finds it: with the operators on source-sink ways
in a topological order, an operator dominates the sink exactly when no edge jumps over it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from magneton_dist.matching.arrays import Bools, Ints
from magneton_dist.matching.cycles import longest_increasing
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.leftovers import leftovers
from magneton_dist.matching.regions import Regions, number_regions
from magneton_dist.matching.sides import Pairing, Side


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators between two cut points, and the cut point behind them (-1: none)."""

    ops: Ints  # ascending
    first: Bools  # the cut point before the segment leads to it
    last: Bools  # it leads to the cut point behind the segment
    end: int


def cut_at_dominators(pairing: Pairing) -> Regions:
    """Regions between cut points; the operators beside the path go where their results are first read."""
    a, b = _Path(pairing.a), _Path(pairing.b)
    region_a, region_b = (np.full(path.n_ops, -1, np.int64) for path in (a, b))
    open_: list[tuple[Segment, Segment]] = [(a.whole(), b.whole())]
    count = 0
    while open_:
        of_a, of_b = open_.pop()
        cuts = _common(a, a.cut_points(of_a), b, b.cut_points(of_b))
        if cuts:
            parts_a, parts_b = a.split(of_a, [i for i, _ in cuts]), b.split(of_b, [j for _, j in cuts])
            open_ += zip(parts_a, parts_b, strict=True)
            continue
        for region, part in ((region_a, of_a), (region_b, of_b)):
            region[part.ops] = count
            if part.end >= 0:
                region[part.end] = count
        count += 1
    for side, region in ((pairing.a, region_a), (pairing.b, region_b)):
        _follow_readers(side.graph, region)
    return number_regions(region_a, region_b, *leftovers(pairing.a, pairing.b, region_a, region_b))


class _Path:
    """What leads from the source to the sink of one graph."""

    def __init__(self, side: Side) -> None:
        graph = side.graph
        self.n_ops = graph.n_ops
        edges = _edges(graph)
        self._edges = edges[:, np.lexsort((edges[0], edges[1]))]
        self._ends = ends_of(graph)
        ids = side.id_of_value
        self.ids = [[i for i in ids[graph.outputs[op]].tolist() if i >= 0] for op in range(graph.n_ops)]

    def whole(self) -> Segment:
        """All operators on a way from the source to the sink."""
        source, sink = self._ends
        every = np.arange(self.n_ops)
        _, on_way = spine(self.n_ops, self._edges, every == source, every == sink)
        ops = np.nonzero(on_way)[0]
        return Segment(ops, ops == source, ops == sink, -1)

    def cut_points(self, part: Segment) -> list[int]:
        """Operators of a segment on every way through it."""
        found, _ = spine(len(part.ops), self._inside(part.ops), part.first, part.last)
        cut_points: list[int] = part.ops[found].tolist()
        return cut_points

    def split(self, part: Segment, cuts: list[int]) -> list[Segment]:
        """The segments before, between and behind `cuts`."""
        out = []
        for before, behind in zip([-1, *cuts], [*cuts, -1], strict=True):
            inside = (part.ops > before) & ((part.ops < behind) | (behind < 0))
            ops = part.ops[inside]
            first = part.first[inside] if before < 0 else np.isin(ops, self._readers(before))
            last = part.last[inside] if behind < 0 else np.isin(ops, self._writers(behind))
            out.append(Segment(ops, first, last, part.end if behind < 0 else behind))
        return out

    def _inside(self, ops: Ints) -> Ints:
        """(2, edges) between `ops`, as places in them."""
        if not len(ops):
            return self._edges[:, :0]
        low, high = np.searchsorted(self._edges[1], [ops[0], ops[-1] + 1])
        edges = self._edges[:, low:high]
        edges = edges[:, np.isin(edges[0], ops) & np.isin(edges[1], ops)]
        return np.searchsorted(ops, edges)

    def _readers(self, op: int) -> Ints:
        readers: Ints = self._edges[1, self._edges[0] == op]
        return readers

    def _writers(self, op: int) -> Ints:
        writers: Ints = self._edges[0, self._edges[1] == op]
        return writers


def _common(a: _Path, points_a: list[int], b: _Path, points_b: list[int]) -> list[tuple[int, int]]:
    """Cut points with equal results, in the same order on both sides: as many as there are."""
    places_b = {key: place for place, keys in enumerate(_keys(b, points_b)) for key in keys}
    pairs = []
    for op, keys in zip(points_a, _keys(a, points_a), strict=True):
        place = next((places_b[key] for key in keys if key in places_b), None)
        if place is not None:
            pairs.append((op, place))
    kept = longest_increasing([place for _, place in pairs])
    return [(pairs[k][0], points_b[pairs[k][1]]) for k in kept]


def _keys(path: _Path, points: list[int]) -> list[list[tuple[int, int]]]:
    """Per cut point its results: the id, and how many cut points before had it (views of one value)."""
    seen: Counter[int] = Counter()
    out = []
    for op in points:
        out.append([(i, seen[i]) for i in path.ids[op]])
        seen.update(path.ids[op])
    return out


def _follow_readers(graph: MatchGraph, region: Ints) -> None:
    """An operator beside the path goes with the first that reads its results."""
    first = graph.first_uses()
    for op in np.nonzero(region < 0)[0][::-1]:
        reader = int(first[graph.outputs[int(op)]].min(initial=graph.n_ops))
        if reader < graph.n_ops:
            region[op] = region[reader]


def spine(n: int, edges: Ints, first: Bools, last: Bools) -> tuple[Ints, Bools]:
    """Which of n nodes lie on every way from the source to the sink.

    Args:
        n: number of nodes, in topological order.
        edges: (2, edges) from lower to higher nodes.
        first: (n,) the source leads to it.
        last: (n,) it leads to the sink.

    Returns:
        those nodes, ascending, and for all nodes whether any way leads through them.
    """
    on_way = _reachable(n, edges, first) & _reachable(n, n - 1 - edges[::-1], last[::-1])[::-1]
    u, v = edges[:, on_way[edges[0]] & on_way[edges[1]]]
    # places: the source 0, node i at i + 1, the sink n + 1
    starts = np.concatenate([u + 1, np.zeros(int((first & on_way).sum()), np.int64), np.nonzero(last & on_way)[0] + 1])
    ends = np.concatenate([v + 1, np.nonzero(first & on_way)[0] + 1, np.full(int((last & on_way).sum()), n + 1)])
    jumps = np.zeros(n + 3, np.int64)
    np.add.at(jumps, starts + 1, 1)
    np.add.at(jumps, ends, -1)
    jumped = np.cumsum(jumps)[1 : n + 1] > 0
    return np.nonzero(on_way & ~jumped)[0], on_way


def _reachable(n: int, edges: Ints, start: Bools) -> Bools:
    """Nodes that `start` leads to; edges go from lower to higher nodes."""
    reached = start.tolist()
    order = np.lexsort((edges[0], edges[1]))
    for u, v in edges[:, order].T.tolist():  # all edges into a node come before those out of it
        if reached[u]:
            reached[v] = True
    return np.array(reached, bool)


def ends_of(graph: MatchGraph) -> tuple[int, int]:
    """Source and sink: the first operator that brings data and a parameter together, the last one it leads to.

    Without parameters the source is the first operator that reads anything the graph was given.
    """
    producer = graph.producers()
    reader, read = graph.inputs.rows, graph.inputs.flat
    given = producer[read] < 0
    named = graph.slot[read] >= 0
    data = np.zeros(graph.n_ops, bool)
    data[reader[given & ~named]] = True
    data = _reachable(graph.n_ops, _edges(graph), data)
    weighs = np.zeros(graph.n_ops, bool)
    weighs[reader[given & named]] = True
    together = np.nonzero(data & weighs)[0]
    source = int(together[0]) if len(together) else int(reader[given].min(initial=0))
    start = np.arange(graph.n_ops) == source
    reached = _reachable(graph.n_ops, _edges(graph), start)
    reached &= np.diff(graph.outputs.start) > 0
    return source, int(np.nonzero(reached)[0].max(initial=source))


def _edges(graph: MatchGraph) -> Ints:
    """(2, edges) producer and reader of every value between operators."""
    producer = graph.producers()[graph.inputs.flat]
    reader = graph.inputs.rows
    between = (producer >= 0) & (producer < reader)
    return np.unique(np.stack([producer[between], reader[between]]), axis=1)
