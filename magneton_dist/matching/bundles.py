"""Pairing of one value with several of the other side that together hold its numbers.

Fused q, k and v weights, gate and up, grouped queries, their gradients and optimizer states. The power sums
|x|1, |x|2^2, |x|4^4 and the plain sum of a whole are those of its parts added up, however it is split, so no
part needs a fingerprint of its own on the side of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np

from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.sides import LEAF_PLACES, SURROUNDED, Pairing, Side
from magneton_dist.matching.surroundings import Around

PARTS = 4  # at most
MOST_AROUND = 64  # groups around a matched value; more, and it says too little
NEAR = 32  # groups that share the most with a whole, of which ...
CANDIDATES = 10  # ... so many that are no larger than it are tried in every combination
LEAST_SHARE = 1 / 64  # of the elements of the whole, in any part


def pair_bundles(pairing: Pairing, near_a: Around, near_b: Around, eps: float, first: int) -> None:
    """Pair wholes with their parts, either way; all parts of a whole share its id.

    What the graphs were given, that is weights, has nearest matched values in common with its parts. Gradients,
    states and new weights have a bundle near them: they are looked for around those of `pairing.bundles` from
    `first` on.
    """
    a, b = pairing.a, pairing.b
    open_a, open_b = _unmatched_by_place(a), _unmatched_by_place(b)
    fresh = frozenset(pairing.bundles[first:])
    for place in open_a.keys() & open_b.keys():
        if place not in LEAF_PLACES and not fresh:
            continue
        among = None if place in LEAF_PLACES else fresh
        for whole, part, wholes, parts, near_wholes, near_parts in (
            (a, b, open_a[place], open_b[place], near_a, near_b),
            (b, a, open_b[place], open_a[place], near_b, near_a),
        ):
            wholes, near = _candidates(whole, wholes, near_wholes, part, parts, near_parts, among)
            for x, ys in _choose(wholes, whole, near, part, eps):
                if whole.ids[x] < 0 and all(part.ids[y] < 0 for y in ys):
                    pairing.bundle(whole, x, part, ys, SURROUNDED)


def _unmatched_by_place(side: Side) -> dict[int, list[int]]:
    """Unmatched groups that say enough, by `Side.place`."""
    open_ = np.nonzero((np.array(side.ids, np.int64) < 0) & np.array(side.anchor, bool))[0]
    place = side.place[open_]
    return {p: open_[place == p].tolist() for p in np.unique(place).tolist()}


def _candidates(
    whole: Side,
    wholes: list[int],
    of_whole: Around,
    part: Side,
    parts: list[int],
    of_part: Around,
    among: frozenset[int] | None,
) -> tuple[list[int], Ints]:
    """Wholes that have candidates for parts, and for each the (wholes, NEAR) best, -1 for none.

    Candidates have matched ids around them in common with the whole, of `among` if that is given. Those made by
    an operator of the same name are better, for small steps leave values of several operators within the
    tolerance; then those with more in common.
    """
    around: dict[int, list[int]] = defaultdict(list)
    for y in parts:
        for i in of_part.both(y, among):
            around[i].append(y)
    rows: list[tuple[int, list[int]]] = []
    for x in wholes if around else ():
        shared: dict[int, int] = {}
        for i in of_whole.both(x, among):
            if len(at_i := around.get(i, ())) <= MOST_AROUND:
                for y in at_i:
                    shared[y] = shared.get(y, 0) + 1
        if len(shared) > 1:
            name = whole.maker[x]
            rows.append((x, sorted(shared, key=lambda y: (part.maker[y] != name, -shared[y]))[:NEAR]))
    near = np.full((len(rows), NEAR), -1, np.int64)
    for row, (_, found) in zip(near, rows, strict=True):
        row[: len(found)] = found
    return [x for x, _ in rows], near


def _choose(
    wholes: list[int], whole: Side, near: Ints, part: Side, eps: float
) -> list[tuple[int, list[int]]]:
    """Wholes with the parts that add up to them, for those that have any.

    Args:
        wholes: groups of `whole`.
        near: (wholes, NEAR) groups of `part`, -1 for none.
    """
    sums_part = _power_sums(part)
    target, mine = _power_sums(whole)[wholes], sums_part[near]
    fits = (near >= 0) & (mine[:, :, 0] < target[:, None, 0])
    fits &= mine[:, :, 0] >= LEAST_SHARE * target[:, None, 0]
    fits &= mine[:, :, 3] <= target[:, None, 3] * (1 + eps)
    rows = np.nonzero((fits.sum(1) >= 2) & ((mine[:, :, 0] * fits).sum(1) >= target[:, 0]))[0]
    if not len(rows):
        return []
    first = np.argsort(~fits[rows], axis=1, kind="stable")[:, :CANDIDATES]
    candidates = np.take_along_axis(near[rows], first, 1)
    candidates[~np.take_along_axis(fits[rows], first, 1)] = -1
    # a combination with nobody in it never adds up
    mine = np.where(candidates[:, :, None] >= 0, sums_part[candidates], 1e300)
    row, combination = np.nonzero(mine[:, :, 0] @ _COMBINATIONS.T == target[rows, None, 0])
    for column in (3, 2, 4, 1):
        total = (mine[row, :, column] * _COMBINATIONS[combination]).sum(1)
        wanted = target[rows[row]]
        # the plain sum may cancel; it is compared on the scale of |x|1
        good = np.abs(total - wanted[:, column]) <= eps * wanted[:, max(column, 2)]
        row, combination = row[good], combination[good]
    row, first_of_row = np.unique(row, return_index=True)
    return [
        (wholes[rows[r]], candidates[r][_COMBINATIONS[c] > 0].tolist())
        for r, c in zip(row, combination[first_of_row], strict=True)
    ]


def _power_sums(side: Side) -> Floats:
    """(groups, 5): numel, sum, |x|1, |x|2^2, |x|4^4 of every group."""
    n = side.graph.numel[side.first_member].astype(np.float64)
    l2, mean, fourth, total = side.graph.features[side.first_member, :4].T
    l1 = mean * l2 * np.sqrt(n)
    return np.stack([n, total * l1, l1, l2**2, (fourth * l2) ** 4], axis=1)


def _combinations(n: int) -> Floats:
    """(combinations, n) rows of 0 and 1 that choose 2 to PARTS of n, few before many."""
    chosen = [c for k in range(2, PARTS + 1) for c in combinations(range(n), k)]
    rows = np.zeros((len(chosen), n))
    for row, places in zip(rows, chosen, strict=True):
        row[list(places)] = 1
    return rows


_COMBINATIONS = _combinations(CANDIDATES)
