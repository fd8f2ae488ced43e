"""The second look at groups that share a label: which of them cannot be equal, which are in the same order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.matching.arrays import Bools
from magneton_dist.matching.fingerprints import (
    DIFFERENT,
    EQUAL,
    UNKNOWN,
    Fingerprint,
    Shape,
    compare_order,
    compare_unfoldings,
)
from magneton_dist.matching.graph import MatchGraph

PAIRS = 4096  # larger crowds are left to names, roles and surroundings

Compare = Callable[[Fingerprint, Fingerprint, float], int]
Crowd = tuple[list[int], list[int]]  # groups of a and of b under one label


@dataclass(eq=False)
class Look:
    """Fingerprints of groups, with every shape that the views in a group were seen in."""

    a: MatchGraph
    b: MatchGraph
    members_a: list[list[int]]
    members_b: list[list[int]]
    eps: float

    def __post_init__(self) -> None:
        self._seen: tuple[dict[int, dict[Shape, Fingerprint]], ...] = ({}, {})
        self.possible = self.a.fingerprints is not None and self.b.fingerprints is not None

    def split(self, crowd: Crowd) -> list[Crowd]:
        """Crowds of groups that may be equal; groups that equal none of the other side are dropped."""
        xs, ys = crowd
        if not self.possible or not 0 < len(xs) * len(ys) <= PAIRS:
            return [crowd]
        return _components(xs, ys, np.array([[self.may_be_equal(x, y) for y in ys] for x in xs]))

    def may_be_equal(self, x: int, y: int) -> bool:
        """No unfolding tells groups x of a and y of b apart."""
        return not self.possible or self.compare(x, y, compare_unfoldings) != DIFFERENT

    def in_order(self, crowd: Crowd) -> list[tuple[int, int]]:
        """Pairs of which each is the only one of the other side with its elements in the same order."""
        xs, ys = crowd
        if not self.possible or not 0 < len(xs) * len(ys) <= PAIRS:
            return []
        same = np.array([[self.compare(x, y, compare_order) == EQUAL for y in ys] for x in xs])
        only = same & (same.sum(0) == 1) & (same.sum(1) == 1)[:, None]
        return [(xs[i], ys[j]) for i, j in zip(*np.nonzero(only), strict=True)]

    def compare(self, x: int, y: int, by: Compare) -> int:
        """What `by` says of groups x of a and y of b in their finest common shape, or in the finest of each."""
        of_x, of_y = self._shapes(0, x), self._shapes(1, y)
        if not of_x or not of_y:
            return UNKNOWN
        common = of_x.keys() & of_y.keys()
        shape_x = max(common or of_x, key=_fineness)
        shape_y = shape_x if common else max(of_y, key=_fineness)
        return by(of_x[shape_x], of_y[shape_y], self.eps)

    def _shapes(self, side: int, group: int) -> dict[Shape, Fingerprint]:
        if group not in self._seen[side]:
            graph, members = ((self.a, self.members_a), (self.b, self.members_b))[side]
            assert graph.fingerprints is not None
            assert graph.fingerprint is not None
            rows = {int(row) for row in graph.fingerprint[members[group]] if row >= 0}
            found = [graph.fingerprints[row] for row in rows]
            self._seen[side][group] = {fingerprint.shape: fingerprint for fingerprint in found}
        return self._seen[side][group]


def _fineness(shape: Shape) -> tuple[int, Shape]:
    return len(shape), shape


def _components(xs: list[int], ys: list[int], may: Bools) -> list[Crowd]:
    if may.all():
        return [(xs, ys)]
    i, j = np.nonzero(may)
    n = len(xs) + len(ys)
    edges = coo_array((np.ones(len(i), bool), (i, len(xs) + j)), shape=(n, n))
    _, component = connected_components(edges, directed=False)
    crowds: dict[int, Crowd] = {}
    for node, c in enumerate(component.tolist()):
        side, group = (0, xs[node]) if node < len(xs) else (1, ys[node - len(xs)])
        crowds.setdefault(c, ([], []))[side].append(group)
    return [crowd for crowd in crowds.values() if crowd[0] and crowd[1]]
