from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.matching.arrays import Ragged
from magneton_dist.matching.graph import FLOAT, INTEGER, UNKNOWN, MatchGraph
from magneton_dist.matching.labels import label_values

EPS = 1e-3


def values(*rows: list[float], numel: int = 100) -> MatchGraph:
    """A graph without operators whose values have these features."""
    n = len(rows)
    features = np.array(rows, np.float64).reshape(n, len(rows[0]) if rows else 5)
    nothing = Ragged.of([])
    return MatchGraph(
        [], np.zeros(0, np.int64), nothing, nothing, np.full(n, FLOAT), np.full(n, numel),
        features, np.arange(n), np.ones(n, bool), np.full(n, -1),
    )  # fmt: skip


def one(l2: float = 3.0, l1: float = 0.8, l4: float = 0.3, total: float = 0.1, excluded: float = 0.0) -> list[float]:
    return [l2, l1, l4, total, excluded]


def same(a: MatchGraph, b: MatchGraph) -> bool:
    label_a, label_b = label_values(a, b, EPS)
    return bool(label_a[0] == label_b[0])


def test_values_within_the_tolerance_share_a_label():
    near = one(3.0 * (1 + 0.9 * EPS), 0.8 * (1 - 0.9 * EPS), 0.3, 0.1 + 0.9 * EPS)
    assert same(values(one()), values(near))


def test_any_feature_beyond_the_tolerance_parts_them():
    for other in (
        one(l2=3.0 * (1 + 1.1 * EPS)),
        one(l1=0.8 * (1 + 1.1 * EPS)),
        one(l4=0.3 * (1 + 1.1 * EPS)),
        one(total=0.1 + 1.1 * EPS),
        one(excluded=1.1 * EPS),
    ):
        assert not same(values(one()), values(other))


def test_norms_are_compared_on_their_own_scale():
    assert same(values(one(l2=1e-12)), values(one(l2=1e-12 * (1 + 0.5 * EPS))))
    assert not same(values(one(l2=1e-12)), values(one(l2=2e-12)))


def test_size_and_kind_of_numbers_must_be_equal():
    assert not same(values(one()), values(one(), numel=101))
    integers = values(one())
    assert not same(values(one()), replace(integers, kind=np.full(1, INTEGER)))


def test_a_value_without_fingerprint_equals_nothing():
    unknown = replace(values(one(), one()), kind=np.full(2, UNKNOWN))
    label_a, label_b = label_values(unknown, unknown, EPS)
    assert len(set(label_a) | set(label_b)) == 4


def test_a_chain_of_small_gaps_is_one_label_and_a_gap_ends_it():
    chain = [one(l2=np.exp(0.9 * EPS * k)) for k in range(5)]
    label_a, label_b = label_values(values(*chain), values(one(l2=np.exp(10 * EPS))), EPS)
    assert len(set(label_a)) == 1
    assert label_b[0] not in label_a


def test_features_of_every_step_count():
    first, agrees, differs = one() + one(l2=5.0), one() + one(l2=5.0), one() + one(l2=6.0)
    assert same(values(first), values(agrees))
    assert not same(values(first), values(differs))


@given(
    st.lists(st.tuples(*[st.floats(0.01, 10.0)] * 3, st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_equal_values_never_have_two_labels(rows, seed):
    exact = np.array(rows)
    noise = np.random.default_rng(seed).uniform(-EPS / 2, EPS / 2, exact.shape)
    near = np.concatenate([exact[:, :3] * (1 + noise[:, :3]), exact[:, 3:] + noise[:, 3:]], axis=1)
    label_a, label_b = label_values(values(*exact), values(*near), 1.01 * EPS)
    assert (label_a == label_b).all()


def test_no_values():
    label_a, label_b = label_values(values(), values(one()), EPS)
    assert (len(label_a), len(label_b)) == (0, 1)
