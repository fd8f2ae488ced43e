"""Operators that work towards no matched value: dead work, other results, what one side does alone."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.matching.arrays import Bools, Ints
from magneton_dist.matching.sides import Side

FEW = 4  # components that read the same matched value and are joined for it; more, and it says too little


def leftovers(a: Side, b: Side, region_a: Ints, region_b: Ints) -> tuple[Ints, Ints]:
    """Put the operators whose region is -1 into components.

    Components follow the data. Then those are joined that read the same matched value, if they are few, so
    that the same dead work on both sides stands side by side; then those of one side with one of the other
    side that calls the same operators in the same order.

    Returns:
        component of every operator of a and of b, -1 for those that have a region.
    """
    left = np.concatenate([region_a, region_b]) < 0
    links, reads = _links_and_reads(((a, 0), (b, a.graph.n_ops)), left)
    component = _components(links, len(left))
    component = _join(component, _readers_of_the_same(component, *reads))
    component = _join(component, _alike(a, b, component, left))
    component = np.where(left, component, -1)
    return component[: a.graph.n_ops], component[a.graph.n_ops :]


def _links_and_reads(sides: tuple[tuple[Side, int], ...], left: Bools) -> tuple[Ints, tuple[Ints, Ints]]:
    """(2, links) of left over operators along the data, and (ids, operators that read them)."""
    links: list[Ints] = []
    ids_read: list[Ints] = []
    readers: list[Ints] = []
    for side, offset in sides:
        graph = side.graph
        read = graph.inputs.flat
        reader, writer = offset + graph.inputs.rows, graph.producers()[read]
        ids = side.id_of_value[read]
        mine = left[reader]
        linked = mine & (writer >= 0) & left[offset + writer]
        links.append(np.stack([reader[linked], offset + writer[linked]]))
        ids_read.append(ids[mine & (ids >= 0)])
        readers.append(reader[mine & (ids >= 0)])
    return np.concatenate(links, axis=1), (np.concatenate(ids_read), np.concatenate(readers))


def _readers_of_the_same(component: Ints, ids: Ints, readers: Ints) -> Ints:
    """(2, joins) of components that read the same id."""
    pairs = np.unique(np.stack([ids, component[readers]]), axis=1)
    few = np.bincount(pairs[0], minlength=1)[pairs[0]] <= FEW
    pairs = pairs[:, few]
    same = pairs[0, 1:] == pairs[0, :-1]
    return np.stack([pairs[1, 1:][same], pairs[1, :-1][same]])


def _alike(a: Side, b: Side, component: Ints, left: Bools) -> Ints:
    """(2, joins) of components that are on one side only and call the same operators on the same sizes."""
    n = a.graph.n_ops
    calls: dict[int, list[tuple[str, int]]] = defaultdict(list)
    on_side: dict[int, set[bool]] = defaultdict(set)
    for op in np.nonzero(left)[0].tolist():
        graph, number = (a.graph, op) if op < n else (b.graph, op - n)
        of_op = int(component[op])
        calls[of_op].append((graph.names[number], int(graph.numel[graph.outputs[number]].sum())))
        on_side[of_op].add(op >= n)
    alike: dict[tuple[tuple[str, int], ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for of_op, called in calls.items():
        if len(on_side[of_op]) == 1:
            alike[tuple(called)][True in on_side[of_op]].append(of_op)
    joins = [pair for xs, ys in alike.values() for pair in zip(xs, ys, strict=False)]
    return np.array(joins, np.int64).reshape(-1, 2).T


def _join(component: Ints, joins: Ints) -> Ints:
    return _components(joins, int(component.max(initial=-1)) + 1)[component]


def _components(edges: Ints, n: int) -> Ints:
    graph = coo_array((np.ones(edges.shape[1], bool), (edges[0], edges[1])), shape=(n, n))
    component: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
    return component
