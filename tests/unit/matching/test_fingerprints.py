"""Comparison of fingerprints, made from tensors by the tracer's own formulas in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.matching.fingerprints import (
    DIFFERENT,
    EQUAL,
    UNKNOWN,
    Fingerprint,
    compare_order,
    compare_unfoldings,
    equal,
    features_of,
    merges_into,
    moment_distance,
)
from magneton_dist.records.schema import TABLES

EPS = 1e-3


def fingerprint(x: np.ndarray, singular: bool = False) -> Fingerprint:
    """Of an array without modes of length one, by definition and slowly."""
    n, l2 = x.size, np.linalg.norm(x)
    l1, l4 = np.abs(x).sum(), (x**4).sum() ** 0.25
    s4: dict[int, list[np.ndarray]] = {}
    spectra: dict[int, list[np.ndarray]] = {}
    for mode in range(x.ndim):
        for others in ([], [m for m in range(mode) if x.ndim == 4 and mode == 3]):
            rows = [mode, *others[:1]]
            matrix = np.moveaxis(x, rows, list(range(len(rows)))).reshape(int(np.prod([x.shape[m] for m in rows])), -1)
            values = np.linalg.svd(matrix / l2, compute_uv=False)
            small = min(matrix.shape)
            s4.setdefault(small, []).append(np.array([np.sqrt((values**4).sum())]))
            spectra.setdefault(small, []).append(values)
    signs = np.where(np.random.default_rng(0).random((4, 64)) < 0.5, -1.0, 1.0)
    profiles: dict[int, list[np.ndarray]] = {}
    for mode, length in enumerate(x.shape):
        rest = tuple(m for m in range(x.ndim) if m != mode)
        sums = [x.sum(rest) / l2, (x**2).sum(rest) / l4**2]
        norms = [np.linalg.norm(m) for m in sums]
        profile = np.array([*norms, *(signs[:, :length] @ sums[0]), *(signs[:, :length] @ sums[1])])
        profiles.setdefault(length, []).append(profile)
    features = np.array([l2, l1 / (l2 * np.sqrt(n)), l4 / l2, x.sum() / l1, 0.0])
    return Fingerprint(features, tuple(sorted(x.shape)), s4, profiles, spectra if singular else {})


def tensor(*shape: int, seed: int = 0) -> np.ndarray:
    """Not alike in all directions: a low rank and a bit of noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 0.3
    for _ in range(2):
        part = np.ones(shape)
        for mode, length in enumerate(shape):
            part = part * rng.normal(size=length).reshape([-1 if m == mode else 1 for m in range(len(shape))])
        x += part
    return x


def test_a_transposed_tensor_is_equal_and_in_the_same_order():
    x = fingerprint(tensor(5, 7, 11))
    y = fingerprint(tensor(5, 7, 11).transpose(2, 0, 1))
    assert equal(x, y, 1e-12)
    assert compare_unfoldings(x, y, 1e-12) == compare_order(x, y, 1e-12) == EQUAL


def test_rounding_within_the_tolerance_is_forgiven():
    exact = tensor(5, 7, 11)
    near = exact * (1 + np.random.default_rng(1).uniform(-EPS, EPS, exact.shape) / 2)
    assert equal(fingerprint(exact), fingerprint(near), EPS)
    assert compare_order(fingerprint(exact), fingerprint(near), EPS) == EQUAL


def test_merged_modes_are_equal_as_far_as_their_unfoldings_go():
    x = tensor(4, 6, 10)
    fine, coarse = fingerprint(x), fingerprint(x.reshape(24, 10))
    assert compare_unfoldings(fine, coarse, 1e-9) == EQUAL
    assert compare_unfoldings(coarse, fine, 1e-9) == EQUAL


@pytest.mark.parametrize("singular", [False, True])
def test_the_same_elements_elsewhere_are_rejected(singular):
    x = tensor(6, 8, 10)
    shuffled = np.random.default_rng(2).permutation(x.ravel()).reshape(x.shape)
    for copy in (np.sort(x, axis=2), shuffled):
        one, other = fingerprint(x, singular), fingerprint(copy, singular)
        assert moment_distance(one.features, other.features) < 1e-9
        assert compare_unfoldings(one, other, 1e-2) == DIFFERENT
        assert compare_order(one, other, 1e-2) == DIFFERENT
        assert not equal(one, other, 1e-2)


def test_permuted_rows_are_equal_but_in_another_order():
    """As a mixture of experts permutes its tokens."""
    x = tensor(6, 30)
    permuted = x[:, np.random.default_rng(3).permutation(30)]
    assert equal(fingerprint(x), fingerprint(permuted), 1e-9)
    assert compare_order(fingerprint(x), fingerprint(permuted), 1e-2) == DIFFERENT


def test_a_difference_between_unrelated_shapes_says_nothing():
    """[4, 6, 10] and [4, 3, 20] share the side 4, but it need not be the same mode."""
    x, y = fingerprint(tensor(4, 6, 10)), fingerprint(tensor(4, 3, 20, seed=5))
    assert compare_unfoldings(x, y, EPS) == UNKNOWN


def test_a_difference_between_a_shape_and_its_merger_counts():
    x, y = fingerprint(tensor(4, 6, 10)), fingerprint(tensor(24, 10, seed=5))
    assert compare_unfoldings(x, y, EPS) == DIFFERENT


def test_nothing_in_common_is_unknown():
    x, y = fingerprint(tensor(4, 15)), fingerprint(tensor(60))
    assert compare_unfoldings(x, y, EPS) == compare_order(x, y, EPS) == UNKNOWN


def test_moments_are_compared_relatively_where_they_have_a_scale():
    a = np.array([10.0, 0.8, 0.2, 0.1, 0.0])
    for place, delta in enumerate([0.01, 0.0008, 0.0002, 0.001, 0.001]):
        b = a.copy()
        b[place] += delta
        assert moment_distance(a, b) == pytest.approx(1e-3, rel=2e-3)
    assert moment_distance(np.zeros(5), np.zeros(5)) == 0


def merges_by_search(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Try every way to put the modes of `fine` into as many boxes as `coarse` has modes."""
    from itertools import product

    return any(
        sorted(int(np.prod([f for f, box in zip(fine, boxes, strict=True) if box == k])) for k in range(len(coarse)))
        == sorted(coarse)
        for boxes in product(range(len(coarse)), repeat=len(fine))
        if len(set(boxes)) == len(coarse)
    )


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=5).map(sorted).map(tuple),
    st.lists(st.sampled_from([2, 3, 4, 6, 8, 12, 24]), min_size=1, max_size=4).map(sorted).map(tuple),
)
def test_merges_into_finds_every_merger(fine, coarse):
    assert merges_into(fine, coarse) == merges_by_search(fine, coarse)


def test_features_of_a_table():
    row = {"elements": 4, "sum": 2.0, "l1": 8.0, "l2": 4.0, "l4": 3.0, "excluded": 0.25}
    empty = {"elements": 0, "sum": 0.0, "l1": 0.0, "l2": 0.0, "l4": 0.0, "excluded": 0.0}
    table = TABLES["fingerprints"].empty()
    for values in (row, empty):
        lists = {name: [] for name, dtype in table.schema.items() if str(dtype).startswith("List")}
        table.extend(type(table)([{**lists, "exact": "0", **values}], schema=table.schema))
    assert features_of(table).tolist() == [[4.0, 1.0, 0.75, 0.25, 0.25], [0.0] * 5]
