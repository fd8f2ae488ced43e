"""Step 4 of the matcher: drop pairs that contradict each other.

Contract every pair into one node over both graphs. Two pairs that are ordered one way in a and the other way
in b make a cycle, so a strongly connected component with more than one node holds a wrong pair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.sides import Pairing, Side

LIMIT = 20


def quotient_edges(pairing: Pairing) -> tuple[Ints, Ints, int]:
    """Edges of both graphs with matched values contracted.

    Nodes: operators of a, operators of b, then one node per id. An unmatched value is an edge from its
    producer to each reader; a matched one is producer -> id -> reader. An operator that only passes an id
    on does not point at it.

    Returns:
        sources, targets (distinct edges) and the number of nodes.
    """
    a, b = pairing.a, pairing.b
    base = a.graph.n_ops + b.graph.n_ops
    nodes = base + len(pairing.confidence)
    pieces: list[Ints] = []
    for side, offset in ((a, 0), (b, a.graph.n_ops)):
        pieces.append(_side_edges(side, offset, base, nodes))
    keys = np.unique(np.concatenate(pieces))
    return keys // nodes, keys % nodes, nodes


def _side_edges(side: Side, offset: int, base: int, nodes: int) -> Ints:
    graph = side.graph
    ids, producer = side.id_of_value, graph.producers()
    reader, read = graph.inputs.rows, graph.inputs.flat
    writer, written = graph.outputs.rows, graph.outputs.flat
    matched = ids[read] >= 0
    source = np.where(matched, base + ids[read], offset + producer[read])
    keep = matched | ((producer[read] >= 0) & (producer[read] != reader))
    into_readers = source[keep] * nodes + offset + reader[keep]
    out = ids[written]
    span = base + nodes
    passed_on = np.isin(writer * span + out, (reader * span + ids[read])[matched])
    keep = (out >= 0) & ~passed_on
    return np.concatenate([into_readers, (offset + writer[keep]) * nodes + base + out[keep]])


def drop_crossing_pairs(pairing: Pairing) -> int:
    """Unmatch pairs until the quotient is acyclic; returns how many were dropped.

    In each cyclic component the longest run of pairs that keeps execution order on both sides stays.
    """
    dropped = 0
    base = pairing.a.graph.n_ops + pairing.b.graph.n_ops
    for attempt in range(LIMIT):
        sources, targets, nodes = quotient_edges(pairing)
        graph = coo_array((np.ones(len(sources), bool), (sources, targets)), shape=(nodes, nodes)).tocsr()
        count, component = connected_components(graph, directed=True, connection="strong")
        cyclic = np.bincount(component, minlength=count) > 1
        if not cyclic.any():
            return dropped
        members: dict[int, list[int]] = defaultdict(list)
        of_id = component[base:]
        for i in np.nonzero(cyclic[of_id])[0].tolist():
            members[int(of_id[i])].append(i)
        dead: set[int] = set()
        for ids in members.values():
            dead.update(_crossing(pairing, ids) if attempt < LIMIT - 1 else ids)
        _unmatch(pairing, dead)
        dropped += len(dead)
    return dropped


def _crossing(pairing: Pairing, ids: list[int]) -> list[int]:
    place_a, place_b = _places(pairing.a, ids), _places(pairing.b, ids)
    ids = sorted(ids, key=lambda i: (place_a[i], place_b[i]))
    keep = set(longest_increasing([place_b[i] for i in ids]))
    dead = [m for i, m in enumerate(ids) if i not in keep]
    if dead:
        return dead
    weakest = min(pairing.confidence[i] for i in ids)  # order alone shows nothing: drop the least certain
    return [i for i in ids if pairing.confidence[i] == weakest][-1:]


def _places(side: Side, ids: list[int]) -> dict[int, int]:
    wanted = set(ids)
    place: dict[int, int] = {}
    for group, i in enumerate(side.ids):
        if i in wanted:
            place[i] = min(place.get(i, side.graph.n_ops), side.position[group])
    return place


def _unmatch(pairing: Pairing, dead: set[int]) -> None:
    """Remove `dead` ids and renumber the others."""
    alive = [i for i in range(len(pairing.confidence)) if i not in dead]
    renumber = {old: new for new, old in enumerate(alive)}
    renumber[-1] = -1
    for side in (pairing.a, pairing.b):
        side.ids = [renumber.get(i, -1) for i in side.ids]
    pairing.confidence = [pairing.confidence[i] for i in alive]


def longest_increasing(sequence: list[int]) -> list[int]:
    """Indices of a longest strictly increasing subsequence, O(n log n)."""
    tails: list[int] = []
    tail_index: list[int] = []
    before: list[int] = [-1] * len(sequence)
    for i, x in enumerate(sequence):
        k = bisect_left(tails, x)
        if k == len(tails):
            tails.append(x)
            tail_index.append(i)
        else:
            tails[k], tail_index[k] = x, i
        before[i] = tail_index[k - 1] if k else -1
    out: list[int] = []
    i = tail_index[-1] if tail_index else -1
    while i >= 0:
        out.append(i)
        i = before[i]
    return out[::-1]
