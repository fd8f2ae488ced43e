from __future__ import annotations

import numpy as np
import pytest

from magneton_dist.energy.statistics import Ratio, mean_interval

T = {1: 12.7062047, 3: 3.1824463, 4: 2.7764451}  # two-sided 95 % points of Student's t, from a printed table


def test_interval_of_a_mean_by_hand():
    interval = mean_interval([10.0, 12.0, 14.0, 16.0])
    half = T[3] * np.sqrt(20 / 3) / 2  # s² = (9 + 1 + 1 + 9) / 3
    assert interval.mean == 13.0
    assert interval.ci95 == pytest.approx((13 - half, 13 + half))


def test_two_values_give_the_widest_interval():
    assert mean_interval([1.0, 3.0]).ci95 == pytest.approx((2 - T[1], 2 + T[1]))  # s / sqrt(2) = 1


def test_one_value_gives_no_interval():
    assert mean_interval([5.0]).ci95 is None
    single = Ratio.of(np.array([6.0]), np.array([3.0]))
    assert single.interval().mean == pytest.approx(2.0)
    assert single.interval().ci95 is None


def test_ratio_of_pairs_by_hand():
    # log ratios: ln 2 + (-0.1, 0, 0.1, 0, 0), s = sqrt(0.02 / 4)
    baseline = np.array([100.0, 110.0, 90.0, 105.0, 95.0])
    candidate = baseline * 2 * np.exp([-0.1, 0, 0.1, 0, 0])
    ratio = Ratio.of(candidate, baseline)
    half = T[4] * np.sqrt(0.005) / np.sqrt(5)
    assert ratio.interval().mean == pytest.approx(2.0)
    assert ratio.interval().ci95 == pytest.approx((2 * np.exp(-half), 2 * np.exp(half)))


def test_drift_common_to_both_cancels_in_the_ratio_but_is_noise():
    drift = np.exp([0.0, 0.1, 0.2])
    ratio = Ratio.of(2 * drift, drift)
    assert ratio.half[0] == pytest.approx(0, abs=1e-12)
    assert ratio.noise[0] == pytest.approx(0.1)  # s of 0, 0.1, 0.2
    assert ratio.safe_half[0] == pytest.approx(4.3026527 * np.sqrt(2) * 0.1 / np.sqrt(3))


def test_noise_pools_both_variants():
    a, b = np.exp([0.0, 0.2]), np.exp([0.0, 0.0])  # variances 0.02 and 0
    assert Ratio.of(a, b).noise[0] == pytest.approx(0.1)


def test_columns_are_independent_and_the_first_is_nominal():
    top, bottom = np.array([[2.0, 4.0, 1.0]] * 3), np.ones((3, 3))
    ratio = Ratio.of(top, bottom)
    assert ratio.interval().mean == pytest.approx(2.0)
    assert ratio.range() == pytest.approx((1.0, 4.0))
    assert Ratio.of(top[:, :1], bottom[:, :1]).range() is None
    assert ratio.inverse().interval().mean == pytest.approx(0.5)


def test_the_interval_covers_the_truth_in_95_percent_of_runs():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        ratio = Ratio.of(0.8 * np.exp(rng.normal(0, 0.04, 4)), np.exp(rng.normal(0, 0.04, 4)))
        low, high = ratio.interval().ci95
        covered += low <= 0.8 <= high
    assert 930 <= covered <= 970  # three standard deviations around 950
