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
from magneton_dist.matching.sides import SURROUNDED, Pairing, Side

PARTS = 4  # at most
WINDOW = 16  # unmatched groups looked at on either side of the place in execution order to be expected
CANDIDATES = 10
LEAST_SHARE = 1 / 64  # of the elements of the whole, in any part
PASSES = 3
_AT_ONCE = 256


def pair_bundles(pairing: Pairing, eps: float) -> int:
    """Pair wholes with their parts, either way; returns how many wholes found theirs.

    Candidates are unmatched groups of the same role and phase, near the same place in execution order. All
    parts of a whole share its id.
    """
    found = 0
    for whole, part in ((pairing.a, pairing.b), (pairing.b, pairing.a)):
        for _ in range(PASSES):
            more = _bundle(pairing, whole, part, eps)
            found += more
            if not more:
                break
    return found


def _bundle(pairing: Pairing, whole: Side, part: Side, eps: float) -> int:
    found = 0
    parts_at = _unmatched_by_place(part)
    sums_whole, sums_part = _power_sums(whole), _power_sums(part)
    for place, wholes in _unmatched_by_place(whole).items():
        parts = parts_at.get(place)
        if parts is None or len(parts) < 2:
            continue
        near = _near(len(wholes), len(parts))
        for start in range(0, len(wholes), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            numbers = np.where(near[some] >= 0, parts[near[some]], -1)
            for i, chosen in _choose(sums_whole[wholes[some]], numbers, sums_part, eps):
                if all(part.ids[y] < 0 for y in chosen):  # a whole before it may have taken them
                    x = int(wholes[start + i])
                    pairing.pair(*((x, chosen[0]) if whole is pairing.a else (chosen[0], x)), SURROUNDED)
                    for y in chosen[1:]:
                        part.ids[y] = whole.ids[x]
                    found += 1
    return found


def _power_sums(side: Side) -> Floats:
    """(groups, 5): numel, sum, |x|1, |x|2^2, |x|4^4 of every group."""
    n = side.graph.numel[side.first_member].astype(np.float64)
    l2, mean, fourth, total = side.graph.features[side.first_member, :4].T
    l1 = mean * l2 * np.sqrt(n)
    return np.stack([n, total * l1, l1, l2**2, (fourth * l2) ** 4], axis=1)


def _unmatched_by_place(side: Side) -> dict[tuple[bool, bool, int], Ints]:
    """Unmatched groups by role and phase, each in execution order."""
    out: dict[tuple[bool, bool, int], list[int]] = defaultdict(list)
    phases = side.graph.phases.tolist()
    last = side.graph.n_ops - 1
    open_ = [g for g, i in enumerate(side.ids) if i < 0 and side.anchor[g]]
    for group in sorted(open_, key=side.position.__getitem__):
        phase = phases[min(side.position[group], last)]
        out[side.leaf[group], side.dead_end[group], phase].append(group)
    return {place: np.array(groups, np.int64) for place, groups in out.items()}


def _near(wholes: int, parts: int) -> Ints:
    """(wholes, 2 WINDOW) places of the parts near each whole, -1 beyond the ends."""
    middle = ((np.arange(wholes) + 0.5) * parts / wholes).astype(np.int64)
    near = middle[:, None] + np.arange(-WINDOW, WINDOW)
    return np.where((near >= 0) & (near < parts), near, -1)


def _choose(wholes: Floats, near: Ints, sums: Floats, eps: float) -> list[tuple[int, list[int]]]:
    """For each whole the parts that add up to it: (place of the whole, groups), for those that have any.

    Args:
        wholes: (wholes, 5) power sums.
        near: (wholes, any) groups that may be parts, -1 for none.
        sums: (groups, 5) power sums of the side of the parts.
    """
    mine = sums[near]
    share = mine[:, :, 0] / wholes[:, None, 0]
    fits = (near >= 0) & (share < 1) & (share >= LEAST_SHARE)
    fits &= mine[:, :, 3] <= wholes[:, None, 3] * (1 + eps)
    worth = (fits.sum(1) >= 2) & ((share * fits).sum(1) >= 1)
    rows = np.nonzero(worth)[0]
    if not len(rows):
        return []
    first = np.argsort(~fits[rows], axis=1, kind="stable")[:, :CANDIDATES]
    candidates = np.take_along_axis(near[rows], first, 1)
    candidates[~np.take_along_axis(fits[rows], first, 1)] = -1
    # a combination with nobody in it never adds up
    mine = np.where(candidates[:, :, None] >= 0, sums[candidates], 1e300)
    row, combination = np.nonzero(mine[:, :, 0] @ _COMBINATIONS.T == wholes[rows, None, 0])
    for column in (3, 2, 4, 1):
        total = (mine[row, :, column] * _COMBINATIONS[combination]).sum(1)
        target = wholes[rows[row]]
        # the plain sum may cancel; it is compared on the scale of |x|1
        good = np.abs(total - target[:, column]) <= eps * target[:, max(column, 2)]
        row, combination = row[good], combination[good]
    row, first_of_row = np.unique(row, return_index=True)
    return [
        (int(rows[r]), candidates[r][_COMBINATIONS[c] > 0].tolist())
        for r, c in zip(row, combination[first_of_row], strict=True)
    ]


def _combinations(n: int) -> Floats:
    """(combinations, n) rows of 0 and 1 that choose 2 to PARTS of n, few before many."""
    chosen = [c for k in range(2, PARTS + 1) for c in combinations(range(n), k)]
    rows = np.zeros((len(chosen), n))
    for row, places in zip(rows, chosen, strict=True):
        row[list(places)] = 1
    return rows


_COMBINATIONS = _combinations(CANDIDATES)
