"""State energies out of simulated sensors, against the power that the sensors were shown."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from magneton_dist.energy.attribution import Attribution, attribute
from magneton_dist.energy.deconvolution import Deconvolution, deconvolve, told_apart
from magneton_dist.meters.sensor import Sensor
from magneton_dist.meters.simulated import PUBLISHED, simulated_power

WATTS = {"compute": 500.0, "transfer": 250.0, "wait": 130.0}


class Run:
    """Steps of compute, transfer and wait; power fluctuates by 5 % from interval to interval."""

    def __init__(self, seed: int, step_s: float, seconds: float = 30.0, jitter: bool = True) -> None:
        random = np.random.default_rng(seed)
        steps = int(seconds / step_s)
        stretch = random.uniform(0.5, 1.5, (steps, 3)) if jitter else np.ones((steps, 3))
        lengths_s = (stretch * step_s * np.array([0.7, 0.2, 0.1])).ravel()
        watts = np.tile(list(WATTS.values()), steps) * random.lognormal(0, 0.05, 3 * steps)
        self.trace = (50 + np.concatenate([[0.0], np.cumsum(lengths_s)]), watts)
        edges_ns = np.rint(self.trace[0] * 1e9).astype(np.int64)
        self.states = pl.DataFrame(
            {"start_ns": edges_ns[:-1], "end_ns": edges_ns[1:], "state": list(WATTS) * steps}
        )
        self.truth = {state: float((watts * lengths_s)[i::3].sum()) for i, state in enumerate(WATTS)}
        self.total = sum(self.truth.values())


def estimate(run: Run, sensor: Sensor, seed: int = 0) -> Deconvolution:
    """With gain and lag withheld."""
    power = simulated_power(sensor, run.trace, noise_w=2.0, seed=seed)
    declared = Sensor(period_s=sensor.period_s, window_s=sensor.window_s)
    return deconvolve(power, run.states, declared, lag_known=False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_states_of_jittered_steps_are_within_two_percent_of_the_total(name):
    sensor = PUBLISHED[name]
    run = Run(seed=7, step_s=0.2 if sensor.window_s < 1 else 0.5)
    found = estimate(run, sensor)
    assert found.refused == ""
    for state, joules in run.truth.items():
        assert found.joules[state].mean == pytest.approx(sensor.gain * joules, abs=0.02 * run.total)
    assert found.total_j.mean == pytest.approx(sensor.gain * run.total, rel=0.02)
    assert found.total_j.mean == pytest.approx(sum(energy.mean for energy in found.joules.values()))
    assert found.lag_s == pytest.approx(sensor.lag_s, abs=0.005)


@pytest.mark.parametrize("name", ["25/100 ms", "100/100 ms", "1000/100 ms"])
@pytest.mark.parametrize("step_s", [0.05, 0.1])
def test_strictly_periodic_steps_are_refused(name, step_s):
    found = estimate(Run(seed=1, step_s=step_s, jitter=False), PUBLISHED[name])
    assert found.joules == {}
    assert found.total_j is None
    assert "periodic" in found.refused


def test_intervals_cover_the_truth_nine_times_in_ten():
    sensor, covered = PUBLISHED["25/100 ms"], []
    for seed in range(25):
        run = Run(seed, step_s=0.15, seconds=15)
        found = estimate(run, sensor, seed)
        assert found.refused == ""
        covered += [found.joules[state].ci95[0] <= j <= found.joules[state].ci95[1] for state, j in run.truth.items()]
    assert np.mean(covered) >= 0.9


def test_a_known_lag_is_used_and_with_a_wrong_one_nothing_is_known_well_enough():
    run, sensor = Run(seed=2, step_s=0.2), PUBLISHED["25/100 ms"]
    power = simulated_power(sensor, run.trace)
    right = deconvolve(power, run.states, sensor, lag_known=True)
    wrong = deconvolve(power, run.states, sensor.model_copy(update={"lag_s": 0.0}), lag_known=True)
    assert right.lag_s == 0.03
    assert right.joules["wait"].mean == pytest.approx(run.truth["wait"], abs=0.005 * run.total)
    assert "three standard errors" in wrong.refused


def test_states_that_always_come_together_are_refused_by_name():
    run, sensor = Run(seed=3, step_s=0.2), PUBLISHED["100/100 ms"]
    assert estimate(run, sensor).refused == ""
    pieces = 60  # of every interval, taken in turns by two states
    edges_ns = np.append(run.states["start_ns"].to_numpy(), run.states["end_ns"][-1])
    fine_ns = np.interp(np.arange(0, len(run.states) + 0.5 / pieces, 1 / pieces), np.arange(len(edges_ns)), edges_ns)
    fine_ns = fine_ns.astype(np.int64)
    run.states = pl.DataFrame(
        {"start_ns": fine_ns[:-1], "end_ns": fine_ns[1:], "state": ["left", "right"] * (len(fine_ns) // 2)}
    )
    refused = estimate(run, sensor).refused
    assert "same mixture of left, right" in refused


def test_what_is_too_uncertain_is_refused_with_its_uncertainty():
    found = estimate(Run(seed=7, step_s=0.05), PUBLISHED["1000/100 ms"])
    assert found.joules == {}
    assert "three standard errors" in found.refused


def test_too_short_a_run_is_refused():
    found = estimate(Run(seed=4, step_s=0.2, seconds=2), PUBLISHED["100/100 ms"])
    assert "at least 30" in found.refused
    assert deconvolve(pl.DataFrame(schema={"t_ns": pl.Int64, "watts": pl.Float64}), Run(1, 0.2).states,
                      PUBLISHED["100/100 ms"], lag_known=True).refused  # fmt: skip


def test_time_between_states_is_a_state():
    run = Run(seed=5, step_s=0.2)
    run.states = run.states.filter(pl.col("state") != "wait")
    found = estimate(run, PUBLISHED["25/100 ms"])
    assert found.watts["between states"] == pytest.approx(130, rel=0.1)


def test_energy_of_a_stretch_adds_up_with_its_interval():
    found = estimate(Run(seed=6, step_s=0.2), PUBLISHED["25/100 ms"])
    once, twice = found.energy({"compute": 1.0, "wait": 0.5}), found.energy({"compute": 2.0, "wait": 1.0})
    assert once.mean == pytest.approx(found.watts["compute"] + 0.5 * found.watts["wait"])
    assert twice.mean == pytest.approx(2 * once.mean)
    assert twice.ci95[1] - twice.mean == pytest.approx(2 * (once.ci95[1] - once.mean))


def test_a_constant_power_needs_no_steps():
    edges_ns = np.array([0, 10_000_000_000])
    states = pl.DataFrame({"start_ns": edges_ns[:1], "end_ns": edges_ns[1:], "state": ["idle"]})
    power = simulated_power(PUBLISHED["25/100 ms"], (edges_ns / 1e9, np.array([120.0])), noise_w=1.0)
    found = deconvolve(power, states, PUBLISHED["25/100 ms"], lag_known=True)
    assert found.joules["idle"].mean == pytest.approx(1200, rel=0.01)
    assert found.joules["idle"].ci95[0] < 1200 < found.joules["idle"].ci95[1]


def accounted(run: Run, sensor: Sensor, share: float = 1.0) -> tuple[Attribution, Attribution]:
    """By plain integration, and told apart."""
    power = simulated_power(sensor, run.trace, noise_w=2.0)
    states = run.states.select("start_ns", "end_ns", phase=pl.lit("working"), activity="state")
    plain = attribute(power, states, share=share)
    return plain, told_apart(plain, power, states, sensor, share)


def test_an_accounts_states_are_told_apart_and_energy_is_conserved():
    # steps of 200 ms seen through windows of 100 ms: plain integration mixes wait with compute
    run = Run(seed=8, step_s=0.2)
    plain, told = accounted(run, PUBLISHED["100/100 ms"])
    truth = run.truth["wait"]
    assert plain.states["working/wait"].j > 1.5 * truth
    assert told.states["working/wait"].j == pytest.approx(truth, abs=0.02 * run.total)
    assert told.total_j == plain.total_j
    assert sum(of.j for of in told.states.values()) + told.residual_j == pytest.approx(told.total_j)
    assert abs(told.residual_j) < 0.02 * run.total
    assert "100 ms windows" in told.notes[-1]


def test_an_account_that_cannot_be_told_apart_stays_and_says_why():
    plain, told = accounted(Run(seed=1, step_s=0.1, jitter=False), PUBLISHED["100/100 ms"])
    assert (told.states, told.residual_j) == (plain.states, plain.residual_j)
    assert "blurred by the sensor" in told.notes[-1]
    plain, told = accounted(Run(seed=8, step_s=0.2), PUBLISHED["100/100 ms"], share=0.5)
    assert told.states == plain.states
    assert "shared device" in told.notes[-1]


@pytest.mark.parametrize(("poll_s", "answered"), [(0.002, True), (0.05, False)])
def test_a_sensor_without_timestamps_must_be_polled_faster_than_its_window(poll_s, answered):
    run, sensor = Run(seed=8, step_s=0.2), PUBLISHED["100/100 ms"]
    updates = simulated_power(sensor, run.trace, noise_w=2.0)
    polls = pl.DataFrame({"t_ns": np.arange(updates["t_ns"][0], updates["t_ns"][-1], round(poll_s * 1e9))})
    power = polls.join_asof(updates.rename({"t_ns": "came_ns"}), left_on="t_ns", right_on="came_ns")
    states = run.states.select("start_ns", "end_ns", phase=pl.lit("working"), activity="state")
    plain = attribute(power, states)
    told = told_apart(plain, power, states, sensor)
    if answered:
        assert told.states["working/wait"].j == pytest.approx(run.truth["wait"], abs=0.02 * run.total)
    else:
        assert told.states == plain.states
        assert "set energy.period_ms to 20" in told.notes[-1]


def test_a_profile_of_another_sensor_is_not_used():
    run, sensor = Run(seed=8, step_s=0.2), PUBLISHED["100/100 ms"]
    other = sensor.model_copy(update={"name": "nvml-instant"})
    power = simulated_power(sensor, run.trace)
    states = run.states.select("start_ns", "end_ns", phase=pl.lit("working"), activity="state")
    plain = attribute(power, states)
    told = told_apart(plain, power, states, other)
    assert told.states == plain.states
    assert "the readings are of simulated" in told.notes[-1]


def test_an_unmeasured_account_stays_unmeasured():
    run = Run(seed=8, step_s=0.2)
    nothing = pl.DataFrame(schema={"t_ns": pl.Int64, "watts": pl.Float64, "window_ns": pl.Int64})
    plain = attribute(nothing, run.states.select("start_ns", "end_ns", phase=pl.lit("working"), activity="state"))
    assert told_apart(plain, nothing, run.states, PUBLISHED["100/100 ms"]) is plain
