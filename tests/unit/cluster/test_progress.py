from __future__ import annotations

import pytest

from magneton_dist.cluster.progress import Forecast

RUNS = ["a", "b", "a", "b"]


def test_nothing_is_known_at_first() -> None:
    assert Forecast(RUNS).left_s(0, 3.0, None) is None


def test_the_first_run_is_extrapolated() -> None:
    # 20 s each, four of them, 5 s gone
    assert Forecast(RUNS).left_s(0, 5.0, 20.0) == pytest.approx(15 + 3 * 20)


def test_what_the_variant_took_before_counts_more_than_its_steps_now() -> None:
    forecast = Forecast(["a", "a"])
    forecast.finished("a", 10.0, steps=100)
    assert forecast.left_s(1, 4.0, 1000.0) == pytest.approx(6)


def test_later_runs_take_as_long_as_their_variant_did() -> None:
    forecast = Forecast(RUNS)
    forecast.finished("a", 10.0, steps=100)
    forecast.finished("b", 30.0, steps=50)
    assert forecast.left_s(2, 4.0, None) == pytest.approx(6 + 30)
    assert forecast.left_s(3, 0.0, None) == pytest.approx(30)


def test_a_variant_that_has_not_run_yet_takes_as_long_as_the_others() -> None:
    forecast = Forecast(RUNS)
    forecast.finished("a", 10.0, steps=100)
    assert forecast.left_s(1, 4.0, None) == pytest.approx(6 + 10 + 10)


def test_a_late_run_has_no_negative_time_left() -> None:
    forecast = Forecast(["a"])
    forecast.finished("a", 10.0, steps=1)
    assert forecast.left_s(0, 25.0, None) == 0.0


def test_steps_are_those_of_the_variant_s_last_run() -> None:
    forecast = Forecast(RUNS)
    assert forecast.steps("a") is None
    forecast.finished("a", 10.0, steps=100)
    assert forecast.steps("a") == 100
    assert forecast.steps("b") is None
