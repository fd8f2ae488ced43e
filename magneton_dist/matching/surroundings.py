"""Pairing of groups by what is matched around them: the nearest pairs above and below in the graphs."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from magneton_dist.matching.crowds import Crowd
from magneton_dist.matching.sides import SIMILAR, SURROUNDED, Pairing, Side

CONTEXT = 24  # nearest matched ids kept as the surroundings of a value
LEAST_JACCARD = 0.5  # similarity above plus similarity below
PAIRS = 4096

Surroundings = tuple[frozenset[int], frozenset[int]]  # matched ids above and below


def pair_crowds(
    pairing: Pairing, crowds: list[Crowd], around_a: Around, around_b: Around, similar: bool
) -> list[Crowd]:
    """Pair groups of a crowd that have equal, or also `similar`, surroundings; returns what is left.

    Groups with equal surroundings pair in execution order. Constants and the like, which equal too much, pair
    only as results of operators on equal values.
    """
    left: list[Crowd] = []
    for xs, ys in crowds:
        if not pairing.a.anchor[xs[0]]:
            _pair_results_of_equals(pairing, xs, ys)
            xs, ys = unmatched(pairing, (xs, ys))
        else:
            of_x, of_y = {x: around_a(x) for x in xs}, {y: around_b(y) for y in ys}
            _pair_equal(pairing, of_x, of_y)
            xs, ys = unmatched(pairing, (xs, ys))
            if similar and 0 < len(xs) * len(ys) <= PAIRS:
                _pair_similar(pairing, xs, ys, of_x, of_y)
                xs, ys = unmatched(pairing, (xs, ys))
        if xs and ys:
            left.append((xs, ys))
    return left


def unmatched(pairing: Pairing, crowd: Crowd) -> Crowd:
    """The groups of a crowd that have no partner yet."""
    xs, ys = crowd
    return [x for x in xs if pairing.a.ids[x] < 0], [y for y in ys if pairing.b.ids[y] < 0]


class Around:
    """Callable: a group's surroundings."""

    def __init__(self, side: Side) -> None:
        self._members = side.groups.members
        self._above = _nearest(side, downwards=False)
        self._below = _nearest(side, downwards=True)

    def __call__(self, group: int) -> Surroundings:
        """Matched ids above and below a group."""
        members = self._members[group]
        if len(members) == 1:
            return self._above[members[0]], self._below[members[0]]
        return (
            frozenset(chain.from_iterable(self._above[v] for v in members)),
            frozenset(chain.from_iterable(self._below[v] for v in members)),
        )

    def both(self, group: int, among: frozenset[int] | None) -> frozenset[int]:
        """Matched ids above or below a group, of `among` if that is given."""
        above, below = self(group)
        return above | below if among is None else (above & among) | (below & among)


def _nearest(side: Side, downwards: bool) -> list[frozenset[int]]:
    """Per unmatched value: ids of the nearest matched descendants (`downwards`) or ancestors, at most CONTEXT."""
    ids = side.id_of_value.tolist()
    nothing: frozenset[int] = frozenset()
    near = [nothing] * side.graph.n_values
    for read, written in reversed(side.lanes) if downwards else side.lanes:
        sources, targets = (written, read) if downwards else (read, written)
        targets = [v for v in targets if ids[v] < 0]  # of the others only the ids are asked
        if not targets:
            continue
        seen: set[int] = set()
        for v in sources:
            if ids[v] >= 0:
                seen.add(ids[v])
            elif near[v]:
                seen |= near[v]
        if not seen:
            continue
        if len(seen) > CONTEXT:
            seen = set(sorted(seen)[:CONTEXT])
        found = frozenset(seen)
        for v in targets:
            near[v] = (near[v] | found) if downwards and near[v] else found
    return near


def _pair_equal(pairing: Pairing, of_x: dict[int, Surroundings], of_y: dict[int, Surroundings]) -> None:
    alike_x, alike_y = _alike(of_x), _alike(of_y)
    for key, xs in alike_x.items():
        ys = alike_y.get(key, [])
        if (key[0] or key[1]) and len(xs) == len(ys):
            for x, y in zip(xs, ys, strict=True):  # both in execution order
                pairing.pair(x, y, SURROUNDED)


def _pair_results_of_equals(pairing: Pairing, xs: list[int], ys: list[int]) -> None:
    of_x, of_y = (
        _by_producer(side, groups) for side, groups in ((pairing.a, xs), (pairing.b, ys))
    )
    for key, alike in of_x.items():
        others = of_y.get(key, [])
        if len(alike) == len(others):
            for x, y in zip(alike, others, strict=True):
                pairing.pair(x, y, SURROUNDED)


def _by_producer(side: Side, groups: list[int]) -> dict[frozenset[int], list[int]]:
    """Groups by the matched ids that the operator which makes them reads, where it reads nothing else."""
    out: dict[frozenset[int], list[int]] = defaultdict(list)
    for group in groups:
        if side.leaf[group]:
            continue
        op = side.position[group]
        read = [side.ids[side.groups.of_value[v]] for v in side.graph.inputs[op]]
        if read and min(read) >= 0:
            out[frozenset(read)].append(group)
    return out


def _alike(surroundings: dict[int, Surroundings]) -> dict[Surroundings, list[int]]:
    out: dict[Surroundings, list[int]] = defaultdict(list)
    for group, key in surroundings.items():
        out[key].append(group)
    return out


def _pair_similar(
    pairing: Pairing, xs: list[int], ys: list[int], of_x: dict[int, Surroundings], of_y: dict[int, Surroundings]
) -> None:
    """The most similar first; among equals those at the same place in their crowds."""
    ranked = []
    for i, x in enumerate(xs):
        for j, y in enumerate(ys):
            similarity = sum(_jaccard(p, q) for p, q in zip(of_x[x], of_y[y], strict=True))
            if similarity >= LEAST_JACCARD:
                ranked.append((-similarity, abs(i / len(xs) - j / len(ys)), i, j))
    for _, _, i, j in sorted(ranked):
        if pairing.a.ids[xs[i]] < 0 and pairing.b.ids[ys[j]] < 0:
            pairing.pair(xs[i], ys[j], SIMILAR)


def _jaccard(p: frozenset[int], q: frozenset[int]) -> float:
    either = len(p | q)
    return len(p & q) / either if either else 0.0
