"""Interval algebra against a bitmap, one bit per nanosecond."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.timeline import intervals as iv

SIZE = 40
# empty and negative intervals, as profilers write them, belong to the input
SETS = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12).map(
    lambda rows: np.array(rows, np.int64).reshape(-1, 2)
)


def bitmap(a: np.ndarray) -> np.ndarray:
    bits = np.zeros(SIZE, bool)
    for start, end in a:
        bits[start:end] = True
    return bits


def same(normal: np.ndarray, bits: np.ndarray) -> None:
    assert (bitmap(normal) == bits).all()
    assert (normal[:, 0] < normal[:, 1]).all()
    assert (normal[1:, 0] > normal[:-1, 1]).all()  # sorted, disjoint, no two that touch


@given(SETS, SETS)
def test_union(a: np.ndarray, b: np.ndarray) -> None:
    same(iv.union(a, b), bitmap(a) | bitmap(b))


@given(SETS, SETS)
def test_intersect(a: np.ndarray, b: np.ndarray) -> None:
    same(iv.intersect(a, b), bitmap(a) & bitmap(b))


@given(SETS, SETS)
def test_subtract(a: np.ndarray, b: np.ndarray) -> None:
    same(iv.subtract(a, b), bitmap(a) & ~bitmap(b))


@given(SETS, st.integers(0, SIZE), st.integers(0, SIZE))
def test_clip(a: np.ndarray, start: int, end: int) -> None:
    start, end = sorted((start, end))
    same(iv.clip(a, start, end), bitmap(a) & bitmap(np.array([[start, end]])))


@given(SETS)
def test_length_counts_overlaps_once(a: np.ndarray) -> None:
    assert iv.length(a) == bitmap(a).sum()


@given(SETS, st.lists(st.integers(-5, SIZE + 5), max_size=10))
def test_before(a: np.ndarray, at: list[int]) -> None:
    bits = bitmap(a)
    assert iv.before(iv.union(a), np.array(at, np.int64)).tolist() == [bits[: max(t, 0)].sum() for t in at]


@settings(max_examples=200)
@given(SETS, SETS, st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_sweep_counts_each_class(a: np.ndarray, b: np.ndarray, start: int, length: int) -> None:
    end = start + length
    cuts, counts = iv.sweep(start, end, a, b)
    assert (cuts[0], cuts[-1]) == (start, end)
    assert (np.diff(cuts) > 0).all()
    assert counts.shape == (2, len(cuts) - 1)
    for segment, (low, high) in enumerate(pairwise(cuts)):
        for t in range(low, high):  # the count is the same at every ns of the segment
            for row, intervals in enumerate((a, b)):
                assert counts[row, segment] == sum(x <= t < y for x, y in intervals)


def test_large_times_stay_exact() -> None:
    t = 2**62
    a = iv.intervals([t, t + 2], [t + 1, t + 5])
    assert iv.length(a) == 4
    left = iv.subtract(a, iv.intervals([t + 3], [t + 4]))
    assert left.tolist() == [[t, t + 1], [t + 2, t + 3], [t + 4, t + 5]]
