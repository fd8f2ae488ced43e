from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from magneton_dist.detect.values import compare_parameters
from magneton_dist.records.schema import PARAMETERS


def digest(*arrays: np.ndarray) -> pl.DataFrame:
    """The PARAMETERS table of these arrays, with signs of their own but the same for the same length."""
    rows = []
    for i, x in enumerate(arrays):
        signs = np.random.default_rng(len(x)).choice([-1.0, 1.0], size=(8, len(x)))
        rows.append({
            "name": f"p{i}", "shape": [len(x)], "dtype": "float32", "sum": float(x.sum()),
            "l1": float(abs(x).sum()), "l2": float(np.linalg.norm(x)), "exact": x.tobytes().hex()[:64],
            "projections": (signs @ x).tolist(),
        })  # fmt: skip
    return pl.DataFrame(rows, schema=PARAMETERS.schema)


def test_equal_parameters_are_bit_equal_with_no_error() -> None:
    x = np.arange(1.0, 100.0)
    check = compare_parameters(digest(x), digest(x))
    assert check is not None
    assert check.bit_equal
    assert check.error == 0.0


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.3])
def test_the_distance_is_estimated_within_a_factor_of_three(scale: float) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=5000)
    d = rng.normal(size=5000) * scale
    check = compare_parameters(digest(x), digest(x + d))
    assert check is not None
    truth = np.linalg.norm(d) / max(np.linalg.norm(x), np.linalg.norm(x + d))
    # mean of 8 squares of normals: chi-square with 8 degrees, far inside a factor of 3 of its mean
    assert truth / 3 < check.error < truth * 3
    assert not check.bit_equal


def test_reordered_elements_have_equal_norms_but_are_seen() -> None:
    x = np.random.default_rng(1).normal(size=1000)
    check = compare_parameters(digest(x), digest(x[::-1].copy()))
    assert check is not None
    assert check.error > 0.3  # truth: sqrt(2)


def test_the_worst_parameter_is_named() -> None:
    a, b = np.ones(50), np.ones(60)
    check = compare_parameters(digest(a, b), digest(a, b * 1.5))
    assert check is not None
    assert check.worst == "p1"


def test_other_names_or_shapes_cannot_be_compared() -> None:
    assert compare_parameters(digest(np.ones(5)), digest(np.ones(6))) is None
    assert compare_parameters(digest(np.ones(5)), digest(np.ones(5), np.ones(4))) is None
    assert compare_parameters(PARAMETERS.empty(), PARAMETERS.empty()) is None


def test_not_a_number_is_an_infinite_error() -> None:
    check = compare_parameters(digest(np.ones(5)), digest(np.full(5, np.nan)))
    assert check is not None
    assert check.error == float("inf")
