from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from simulated_replay import IDLE_W, TABLE_4, Device, Repeated, joules, naive_joules

from magneton_dist.energy.replay.protocol import Rules, Span, estimate, measure
from magneton_dist.meters.simulated import PUBLISHED

RULES = Rules()


@pytest.mark.parametrize("operator", TABLE_4)
@pytest.mark.parametrize("name", PUBLISHED)
def test_an_operators_joules_are_told_to_a_per_cent_under_every_published_sensor(name: str, operator: str) -> None:
    for seed, lag_s in ((1, 0.0), (2, 0.07)):
        sensor = PUBLISHED[name].model_copy(update={"lag_s": lag_s})
        device, cycle = Device(sensor, seed), TABLE_4[operator]
        series = measure([device.arm(cycle)], device, RULES)
        found = estimate(series.joules[:, 0])
        truth = sensor.gain * joules(cycle)
        assert found.mean == pytest.approx(truth, rel=0.01)
        assert series.conclusive
        assert found.half < 0.01 * truth
        assert series.source == "power"


def test_a_monitor_of_windows_is_off_by_more() -> None:
    errors = [
        abs(naive_joules(sensor, cycle, seed) / sensor.gain / joules(cycle) - 1)
        for sensor in PUBLISHED.values()
        for cycle in TABLE_4.values()
        for seed in range(3)
    ]
    assert max(errors) > 0.2


def test_a_counter_is_read_from_tick_to_tick() -> None:
    device, cycle = Device(PUBLISHED["25/100 ms"], 3, counter=True), TABLE_4["linear"]
    series = measure([device.arm(cycle)], device, RULES)
    assert series.source == "counter"
    assert estimate(series.joules[:, 0]).mean == pytest.approx(joules(cycle), rel=0.005)
    assert not series.notes


def test_what_restores_the_inputs_is_not_the_operators() -> None:
    restoring = ((0.4e-3, 520.0),)
    device, operator = Device(PUBLISHED["25/100 ms"], 4), ((0.6e-3, 300.0),)
    arms = [device.arm(restoring + operator), device.arm(restoring)]

    def beyond_the_last(of_windows: np.ndarray) -> np.ndarray:
        return of_windows[:, 0] - of_windows[:, -1]

    series = measure(arms, device, RULES, beyond_the_last)
    assert estimate(beyond_the_last(series.joules)).mean == pytest.approx(joules(operator), rel=0.01)
    assert estimate(beyond_the_last(series.seconds)).mean == pytest.approx(0.6e-3, rel=1e-6)


class Noted(Repeated):
    """Writes down when it was its turn."""

    turns: list[str] = []  # noqa: RUF012 - shared on purpose
    name = ""

    def run(self, seconds: float) -> Span:
        self.turns.append(self.name)
        return super().run(seconds)


def test_arms_take_turns_in_abba_order() -> None:
    device = Device(PUBLISHED["25/100 ms"], 5)
    a, b = Noted(device, ((1e-3, 300.0),)), Noted(device, ((1e-3, 500.0),))
    a.name, b.name, Noted.turns = "a", "b", []
    series = measure([a, b], device, RULES, lambda j: np.log(j[:, 0] / j[:, 1]), absolute=True)
    assert "".join(Noted.turns).startswith("ab" + "abba" * 2)
    assert estimate(np.log(series.joules[:, 0] / series.joules[:, 1])).mean == pytest.approx(np.log(0.6), abs=0.01)


def test_throttled_windows_do_not_count_and_end() -> None:
    device = Device(PUBLISHED["25/100 ms"], 6)
    device.throttled = ("SW power cap",)
    series = measure([device.arm(TABLE_4["linear"])], device, RULES)
    assert not len(series.joules)
    assert not series.conclusive
    assert series.rejected == {"throttled: SW power cap": 3 * RULES.most}
    assert np.isnan(estimate(series.joules[:, 0]).mean)


def test_no_window_is_begun_that_would_end_too_late() -> None:
    """Windows are of 11 s here, one more comes before them; 120 s hold ten, whether they count or not."""
    for throttled in ((), ("SW power cap",)):
        device = Device(PUBLISHED["25/100 ms"], 8)
        device.throttled = throttled
        began_s = device.now_s
        series = measure([Moody(device, ())], device, RULES, within_s=120.0)
        assert len(series.joules) + series.rejected.total() == 10
        assert device.now_s - began_s - RULES.warm_up_s == pytest.approx(110, abs=1)


class Warming(Repeated):
    """Ten degrees warmer after each of the first three windows; leakage makes it hungrier."""

    def run(self, seconds: float) -> Span:
        if self.device.temperature_c < 90:
            self.device.temperature_c += 10
            self.cycle = ((1e-3, 500.0 + self.device.temperature_c),)
        return super().run(seconds)


def test_windows_of_another_temperature_do_not_count() -> None:
    device = Device(PUBLISHED["25/100 ms"], 7)
    series = measure([Warming(device, ((1e-3, 500.0),))], device, RULES)
    assert series.rejected["temperature drifted"] == 1
    assert estimate(series.joules[:, 0]).mean == pytest.approx(0.590, rel=0.005)
    assert series.temperature_c == 90.0


class Moody(Repeated):
    """Draws anything."""

    def run(self, seconds: float) -> Span:
        watts = float(self.device._random.uniform(IDLE_W, 700))
        return Repeated(self.device, ((1e-3, watts),)).run(seconds)


def test_what_does_not_settle_is_inconclusive() -> None:
    device = Device(PUBLISHED["25/100 ms"], 8)
    series = measure([Moody(device, ())], device, RULES)
    assert len(series.joules) == RULES.most
    assert not series.conclusive


def test_the_half_width_is_students() -> None:
    for n in range(2, 13):
        values = np.random.default_rng(n).normal(5, 1, n)
        low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
        found = estimate(values)
        assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-3)
    assert estimate(np.array([1.0])).half == np.inf
