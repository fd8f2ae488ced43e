from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters.calibration import measured_sensor
from magneton_dist.meters.simulated import PUBLISHED, simulated_power


def pulses(seconds: float, seed: int = 0) -> np.ndarray:
    lengths_s = np.random.default_rng(seed).uniform(0.1, 0.6, 2 * round(seconds / 0.7))
    return 1000 + np.concatenate([[0.0], np.cumsum(lengths_s)])


def watched(name: str, edges_s: np.ndarray, noise_w: float = 3.0) -> pl.DataFrame:
    watts = np.tile([600.0, 120.0], len(edges_s) // 2)
    # power known before and after the load, so that every window is filled
    trace = (np.concatenate([[990.0], edges_s, [edges_s[-1] + 5]]), np.concatenate([[120.0], watts, [120.0]]))
    return simulated_power(PUBLISHED[name], trace, noise_w, seed=4).select("t_ns", "watts")


@pytest.mark.parametrize("name", PUBLISHED)
def test_period_lag_and_window_of_the_published_sensors_are_found(name):
    edges_s, truth = pulses(40), PUBLISHED[name]
    sensor, busy_w = measured_sensor(watched(name, edges_s), edges_s)
    assert sensor.period_s == pytest.approx(truth.period_s, abs=1e-3)
    assert sensor.lag_s == pytest.approx(truth.lag_s, abs=3e-3)
    assert sensor.window_s == pytest.approx(truth.window_s, rel=0.05, abs=3e-3)
    assert sensor.gain == 1.0  # it cannot know
    assert busy_w == pytest.approx(truth.gain * 600, rel=0.01)


def test_readings_that_do_not_follow_the_load_are_refused():
    edges_s = pulses(40)
    with pytest.raises(MeterError, match="do not follow"):
        measured_sensor(watched("25/100 ms", pulses(40, seed=9)), edges_s)
    flat = watched("25/100 ms", edges_s).with_columns(watts=pl.lit(74.0))
    with pytest.raises(MeterError, match="do not follow"):
        measured_sensor(flat, edges_s)


def test_readings_that_fall_under_load_are_refused():
    edges_s = pulses(40)
    upside_down = watched("25/100 ms", edges_s).with_columns(watts=720 - pl.col("watts"))
    with pytest.raises(MeterError, match="do not follow"):
        measured_sensor(upside_down, edges_s)


def test_too_few_updates_are_refused():
    edges_s = pulses(40)
    with pytest.raises(MeterError, match=r"updated 1[0-9] times"):
        measured_sensor(watched("25/100 ms", edges_s)[::25], edges_s)
