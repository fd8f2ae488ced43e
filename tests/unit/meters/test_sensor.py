from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from magneton_dist.meters.sensor import Sensor, fit_sensor
from magneton_dist.meters.simulated import PUBLISHED, simulated_power

STEP = (np.array([0.0, 1.0, 2.0]), np.array([[100.0], [300.0]]))  # 100 W, from 1 s on 300 W


def shown(sensor: Sensor, *t_s: float) -> list[float]:
    return sensor.response(np.array(t_s), *STEP)[:, 0].tolist()


def test_a_reading_is_the_mean_of_its_window_before_the_lag():
    sensor = Sensor(period_s=0.1, window_s=0.2, lag_s=0.05)
    # windows end at 1.00, 1.05, 1.15 and 1.25 s: 0, 1/4, 3/4 and all of them after the step
    assert shown(sensor, 1.05, 1.10, 1.20, 1.30) == pytest.approx([100, 150, 250, 300])


def test_gain_scales_readings():
    assert shown(Sensor(period_s=0.1, window_s=0.1, gain=0.945), 0.5) == pytest.approx([94.5])


def test_a_rise_smears_the_step_into_a_ramp():
    # the window of 1 ms is short beside the ramp of 100 ms: half way at half time
    sensor = Sensor(period_s=0.1, window_s=0.001, rise_s=0.1)
    assert shown(sensor, 1.0, 1.0505, 1.2) == pytest.approx([100, 200, 300])


def test_beyond_the_edges_the_outer_values_go_on():
    assert shown(Sensor(period_s=0.1, window_s=0.1), -5.0, 9.0) == pytest.approx([100, 300])


@given(
    lengths=st.lists(st.floats(0.01, 0.5), min_size=2, max_size=8),
    window=st.floats(0.01, 1.0),
    rise=st.sampled_from([0.0, 0.08]),
    lag=st.floats(0.0, 0.5),
)
@settings(max_examples=50, deadline=None)
def test_shares_of_states_add_up_to_one(lengths, window, rise, lag):
    edges_s = np.concatenate([[0.0], np.cumsum(lengths)])
    labels = np.eye(len(lengths))
    sensor = Sensor(period_s=0.1, window_s=window, rise_s=rise, lag_s=lag)
    shares = sensor.response(np.linspace(0, edges_s[-1], 7), edges_s, labels)
    assert shares.sum(axis=1) == pytest.approx(np.ones(7))
    assert (shares > -1e-9).all()


def test_lag_and_window_are_found_from_readings_of_known_steps():
    random = np.random.default_rng(1)
    edges_s = np.concatenate([[0.0], np.cumsum(random.uniform(0.05, 0.4, 80))])
    levels = np.tile([500.0, 120.0], 40)
    truth = Sensor(period_s=0.1, window_s=0.025, lag_s=0.034)
    power = simulated_power(truth, (edges_s, levels), noise_w=1.0, seed=3)
    labels = np.tile(np.eye(2), (40, 1))
    found = fit_sensor(
        power["t_ns"].to_numpy() / 1e9, power["watts"].to_numpy(), edges_s, labels,
        Sensor(period_s=0.1, window_s=0.1), {"lag_s": (0.0, 0.05, 0.1), "window_s": (0.01, 0.05, 0.1, 1.0)},
    )  # fmt: skip
    assert found.lag_s == pytest.approx(0.034, abs=0.001)
    assert found.window_s == pytest.approx(0.025, abs=0.001)


def test_simulated_readings_come_at_the_period_and_only_where_the_power_is_known():
    sensor = PUBLISHED["1000/100 ms"]
    power = simulated_power(sensor, (np.array([0.0, 5.0]), np.array([200.0])))
    t_ns = power["t_ns"].to_numpy()
    assert np.diff(t_ns) == pytest.approx(1e8, abs=2)
    assert 1.03e9 <= t_ns[0] < 1.13e9 + 1
    assert power["watts"].to_list() == [200.0] * len(power)
    assert power["window_ns"].unique().to_list() == [1_000_000_000]


@pytest.mark.parametrize("wrong", [{"window_s": 0}, {"period_s": -1}, {"lag_s": -0.1}, {"gain": 0}, {"colour": 1}])
def test_a_sensor_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        Sensor(**{"period_s": 0.1, "window_s": 0.1, **wrong})
