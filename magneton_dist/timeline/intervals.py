"""Interval algebra on int64 nanoseconds.

A *set* is an array of shape [n, 2] of half-open intervals ``[start, end)``. Rows that are empty or negative
(profilers write both) hold no time and are dropped. A *normal* set is sorted, disjoint and gap-separated;
`union`, `intersect`, `subtract` and `clip` take any set and return a normal one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def intervals(starts: ArrayLike, ends: ArrayLike) -> Ints:
    """The set with these starts and ends, shape [n, 2]; empty and negative rows are dropped."""
    pairs = np.stack([np.asarray(starts, np.int64), np.asarray(ends, np.int64)], axis=-1).reshape(-1, 2)
    return pairs[pairs[:, 1] > pairs[:, 0]]


def distinct(points: Ints) -> Ints:
    """The points sorted, each once."""
    # np.unique hashes, which takes seconds for a million regularly spaced times; these come in sorted runs.
    ordered = np.sort(points, kind="stable")
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) > 0]


def edges(*sets: Ints) -> Ints:
    """All starts and ends of the sets, sorted, each once."""
    return distinct(np.concatenate([s.ravel() for s in sets])) if sets else np.empty(0, np.int64)


def cover(covering: Ints, at: Ints) -> Ints:
    """How many intervals of `covering` (any set) hold each instant of `at`."""
    covering = covering[covering[:, 1] > covering[:, 0]]
    opened = np.searchsorted(np.sort(covering[:, 0]), at, side="right")
    closed = np.searchsorted(np.sort(covering[:, 1]), at, side="right")
    return opened - closed


def sweep(start: int, end: int, *classes: Ints) -> tuple[Ints, Ints]:
    """Cut ``[start, end)`` wherever any class changes.

    Returns:
        The n + 1 cut points, the first `start` and the last `end`, and counts of shape [classes, n]: how many
        intervals of each class are open in each elementary segment.
    """
    cuts = cut(start, end, *(c.ravel() for c in classes))
    counts = np.stack([cover(c, cuts[:-1]) for c in classes]) if classes else np.empty((0, len(cuts) - 1))
    return cuts, counts.astype(np.int64)


def cut(start: int, end: int, *points: Ints) -> Ints:
    """`start`, the points strictly between `start` and `end`, and `end`: sorted, each once."""
    inner = np.concatenate([np.array([start, end], np.int64), *points])
    return distinct(inner[(inner >= start) & (inner <= end)])


def where(cuts: Ints, held: Bools) -> Ints:
    """The normal set of the elementary segments (between consecutive `cuts`) that are `held`."""
    flips = np.flatnonzero(np.diff(np.concatenate([[False], held, [False]]).astype(np.int8)))
    return cuts[flips].reshape(-1, 2)


def union(*sets: Ints) -> Ints:
    """Instants in any of the sets."""
    every = np.concatenate(sets) if sets else np.empty((0, 2), np.int64)
    every = every[every[:, 1] > every[:, 0]]
    if not len(every):
        return np.empty((0, 2), np.int64)
    if (every[1:, 0] < every[:-1, 0]).any():
        every = every[np.argsort(every[:, 0], kind="stable")]
    reach = np.maximum.accumulate(every[:, 1])
    apart = np.flatnonzero(every[1:, 0] > reach[:-1]) + 1  # those that touch are one
    return np.stack([every[np.append(0, apart), 0], reach[np.append(apart, len(every)) - 1]], axis=1)


def intersect(a: Ints, b: Ints) -> Ints:
    """Instants in both sets."""
    cuts = edges(a, b)
    if len(cuts) < 2:
        return np.empty((0, 2), np.int64)
    return where(cuts, (cover(a, cuts[:-1]) > 0) & (cover(b, cuts[:-1]) > 0))


def subtract(a: Ints, b: Ints) -> Ints:
    """Instants in `a` and not in `b`."""
    cuts = edges(a, b)
    if len(cuts) < 2:
        return np.empty((0, 2), np.int64)
    return where(cuts, (cover(a, cuts[:-1]) > 0) & (cover(b, cuts[:-1]) == 0))


def clip(a: Ints, start: int, end: int) -> Ints:
    """The part of a set inside ``[start, end)``."""
    return union(np.clip(a, start, end))


def length(a: Ints) -> int:
    """Nanoseconds in a set; overlapping intervals count once."""
    normal = union(a)
    return int((normal[:, 1] - normal[:, 0]).sum())


def before(normal: Ints, at: Ints) -> Ints:
    """Nanoseconds of a normal set that lie before each instant of `at`."""
    spans = np.concatenate([[0], np.cumsum(normal[:, 1] - normal[:, 0])]).astype(np.int64)
    row = np.searchsorted(normal[:, 0], at, side="right")
    inside = np.zeros(len(at), np.int64)
    hit = row > 0
    inside[hit] = np.minimum(at[hit], normal[row[hit] - 1, 1]) - normal[row[hit] - 1, 0]
    return spans[np.maximum(row - 1, 0)] + inside
