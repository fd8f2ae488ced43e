from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import (
    Conditions,
    ModelledMeter,
    NullMeter,
    NvmlMeter,
    Reading,
    Sampler,
    gpm,
    load_profile,
)
from magneton_dist.meters import nvml as nvml_room
from magneton_dist.meters import sampler as room
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COUNTERS, POWER

MS = 1_000_000
GPU = "GPU-aaaa1111-0000"


class ScriptedMeter(NullMeter):
    """Says what `script` says at each reading; a reading takes `cost_s` on `clock`."""

    name, sensor, counter, period_s = "scripted", "scripted", "scripted-energy", 0.001

    def __init__(self, clock: Any, script: Callable[[int], Reading], cost_s: float = 0.0) -> None:
        super().__init__("GPU-1")
        self.clock, self.script, self.cost_s, self.reads = clock, script, cost_s, 0
        self.heat = 40.0

    def read(self) -> Reading:
        self.clock.advance(self.cost_s)
        self.reads += 1
        return self.script(self.reads - 1)

    def conditions(self) -> Conditions:
        self.heat += 1
        return Conditions(temperature_c=self.heat, power_cap_w=700.0, throttled=("software power cap",))


class StopAfter:
    """An event that is set after `seconds` of the clock; waiting advances the clock."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self.clock, self.end_ns = clock, clock.now_ns + round(seconds * 1e9)

    def is_set(self) -> bool:
        return self.clock.now_ns >= self.end_ns

    def set(self) -> None:
        self.end_ns = 0

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.clock.advance(seconds)


@pytest.fixture
def sampled(clock, monkeypatch):
    """Runs a sampler on the false clock for some seconds."""
    monkeypatch.setattr(room, "time", clock)

    def run(meter: ScriptedMeter, period_s: float, seconds: float) -> Sampler:
        stop = StopAfter(clock, seconds)
        monkeypatch.setattr(room.threading, "Event", lambda: stop)
        sampler = Sampler(meter, period_s)
        sampler._run()
        return sampler

    return run


def test_slow_readings_do_not_make_the_period_drift(sampled, clock):
    start_ns = clock.now_ns
    meter = ScriptedMeter(clock, lambda i: Reading(clock.now_ns, 100.0, None), cost_s=0.006)
    power, _ = sampled(meter, 0.01, 1.0).tables()
    times_ms = ((power["t_ns"] - start_ns) // MS).to_list()
    assert times_ms == [*range(6, 1000, 10), 1006]


def test_missed_periods_are_skipped_not_made_up_for(sampled, clock):
    start_ns = clock.now_ns

    def script(i: int) -> Reading:
        clock.advance(0.035 if i == 2 else 0.0)
        return Reading(clock.now_ns, 100.0, None)

    power, _ = sampled(ScriptedMeter(clock, script), 0.01, 0.1).tables()
    times_ms = ((power["t_ns"] - start_ns) // MS).to_list()
    assert times_ms == [0, 10, 55, 60, 70, 80, 90, 100]


def test_only_new_readings_become_rows(sampled, clock):
    start_ns = clock.now_ns
    # the sensor updates every 100 ms and is polled every 20
    meter = ScriptedMeter(clock, lambda i: Reading(start_ns + i // 5 * 100 * MS, 100.0 + i // 5, float(i)))
    power, counters = sampled(meter, 0.02, 0.48).tables()
    assert power["watts"].to_list() == [100, 101, 102, 103, 104]
    assert len(counters) == meter.reads == 25
    assert POWER.validate(power, "here").height == 5
    assert COUNTERS.validate(counters, "here")["sensor"].unique().to_list() == ["scripted-energy"]


def test_a_mean_since_the_last_reading_carries_that_interval_as_its_window(sampled, clock):
    power, _ = sampled(ScriptedMeter(clock, lambda i: Reading(clock.now_ns, 1.0, None)), 0.05, 0.2).tables()
    assert power["window_ns"].to_list() == [0, *[50 * MS] * 4]


def test_failures_leave_gaps_with_reasons_and_polling_goes_on(sampled, clock):
    def script(i: int) -> Reading:
        if i == 1:
            raise MeterError("lost it")
        if i == 2:
            raise RuntimeError("a defect")
        if i == 3:
            return Reading(clock.now_ns, None, None, reason="no permission")
        return Reading(clock.now_ns, 100.0, None)

    sampler = sampled(ScriptedMeter(clock, script), 0.01, 0.05)
    power, counters = sampler.tables()
    assert power["watts"].to_list() == [100, None, None, None, 100, 100]
    reasons = ["MeterError: lost it", "RuntimeError: a defect", "no permission"]
    assert sampler.faults == [f"meter scripted: {reason}" for reason in reasons]
    assert counters.is_empty()


def test_faults_are_counted_and_bounded(sampled, clock):
    readings = [Reading(clock.now_ns, None, None, reason=f"impossible reading of {i} W") for i in range(20)]
    readings += [Reading(clock.now_ns, None, None, reason="impossible reading of 3 W")] * 5
    sampler = sampled(ScriptedMeter(clock, lambda i: readings[min(i, 24)]), 0.01, 0.24)
    assert len(sampler.faults) == 9
    assert sampler.faults[3] == "meter scripted: impossible reading of 3 W (6 times)"
    assert sampler.faults[-1] == "meter scripted: failed for other reasons (12 times)"


def test_a_stall_is_a_gap_for_a_sensor_with_a_window_of_its_own(sampled, clock):
    start_ns = clock.now_ns

    def script(i: int) -> Reading:
        clock.advance(3.0 if i == 1 else 0.0)
        return Reading(clock.now_ns, 100.0 + i, None)

    meter = ScriptedMeter(clock, script)
    meter.window_ns = 25 * MS
    power, _ = sampled(meter, 0.1, 3.2).tables()
    rows = [((t - start_ns) // MS, watts, window // MS) for _, t, watts, _, window in power.rows()]
    assert rows == [(0, 100, 25), (3075, None, 3075), (3100, 101, 25), (3200, 102, 25)]


def test_conditions_are_collected(sampled, clock):
    sampler = sampled(ScriptedMeter(clock, lambda i: Reading(clock.now_ns, 1.0, None)), 0.05, 2.5)
    assert sampler.temperature_c == (41.0, 44.0)  # at start, twice on the way, at the end
    assert sampler.power_cap_w == 700.0
    assert sampler.throttled == ["software power cap"]


def test_a_meter_that_cannot_tell_its_conditions_still_samples(sampled, clock, monkeypatch):
    def conditions() -> Conditions:
        raise RuntimeError("a defect")

    meter = ScriptedMeter(clock, lambda i: Reading(clock.now_ns, 1.0, None))
    monkeypatch.setattr(meter, "conditions", conditions)
    sampler = sampled(meter, 0.05, 0.2)
    assert sampler.tables()[0].height == 5
    assert (sampler.faults, sampler.temperature_c) == (["meter scripted: RuntimeError: a defect (2 times)"], None)


@pytest.mark.parametrize("meter", [NullMeter("GPU-1"), ModelledMeter(load_profile("h200"), "cpu")])
def test_a_meter_with_nothing_to_poll_starts_no_thread(meter):
    before = threading.active_count()
    sampler = Sampler(meter)
    sampler.start()
    assert threading.active_count() == before
    power, counters = sampler.stop()
    assert POWER.validate(power, "here").is_empty()
    assert COUNTERS.validate(counters, "here").is_empty()


def test_a_real_thread_samples_stops_at_once_and_is_gone(nvml):
    before = threading.active_count()
    sampler = Sampler(NvmlMeter(GPU, nvml), period_s=0.02)
    sampler.start()
    time.sleep(0.3)
    running, _ = sampler.tables()
    assert not running.is_empty()
    started = time.monotonic()
    power, counters = sampler.stop()
    assert time.monotonic() - started < 0.2
    assert threading.active_count() == before
    assert power.height >= running.height
    assert power["watts"].unique().to_list() == [124.0]
    assert counters["joules"].unique().to_list() == [0.0]
    assert sampler.temperature_c == (41.0, 41.0)


def test_stopping_a_long_period_does_not_wait_for_it(nvml):
    sampler = Sampler(NvmlMeter(GPU, nvml), period_s=60)
    sampler.start()
    started = time.monotonic()
    power, _ = sampler.stop()
    assert time.monotonic() - started < 1
    assert 1 <= power.height <= 2


def test_performance_monitors_are_seen_beside_the_power_every_100_ms(sampled, nvml, clock, monkeypatch):
    for of in (gpm, nvml_room):
        monkeypatch.setattr(of, "time", clock)
    since_ns, said = clock.now_ns, iter([0.1, 0.5])
    answer = nvml._nvmlGpmMetricsGet

    def scripted(question):
        nvml.gpm[10] = 100 * next(said, 0.0)  # percent
        return answer(question)

    nvml._nvmlGpmMetricsGet = scripted
    sampler = sampled(NvmlMeter(GPU, nvml), 0.05, 0.26)
    seen = MONITORS.validate(sampler.monitors(), "here")
    assert sampler.unmonitored == ""
    assert [(a - since_ns, b - since_ns) for a, b in seen.select("start_ns", "end_ns").rows()] == [
        (0, 100 * MS), (100 * MS, 200 * MS), (200 * MS, 300 * MS),
    ]  # fmt: skip
    assert seen["dram"].to_list() == [0.1, 0.5, 0.0]
    assert sampler.monitors(2).rows() == seen[2:].rows()


def test_why_there_are_no_performance_monitors_is_kept(sampled, nvml, clock):
    nvml.gpm = None
    sampler = sampled(NvmlMeter(GPU, nvml), 0.05, 0.2)
    assert "no performance monitors" in sampler.unmonitored
    assert sampler.monitors().is_empty()
    assert sampler.tables()[0].height > 0  # watts are there without them
    scripted = sampled(ScriptedMeter(clock, lambda n: Reading(n, 1.0, None)), 0.05, 0.1)
    assert scripted.unmonitored == "meter scripted reads none"


def test_monitors_that_break_are_given_up_and_what_was_seen_is_kept(sampled, nvml, clock, monkeypatch):
    for of in (gpm, nvml_room):
        monkeypatch.setattr(of, "time", clock)
    meter = NvmlMeter(GPU, nvml)
    answers = iter([None, gpm.Activity(0, 1, 1.0, 0.5, 0.2, None)])
    monkeypatch.setattr(meter, "activity", lambda: next(answers))
    sampler = sampled(meter, 0.05, 0.3)
    assert sampler.monitors()["tensor"].to_list() == [0.5]
    assert sampler.unmonitored.startswith("given up: StopIteration")
    assert sampler.tables()[0].height > 4


def test_looks_at_monitors_that_cost_much_are_rarer(sampled, nvml, clock, monkeypatch):
    for of in (gpm, nvml_room):
        monkeypatch.setattr(of, "time", clock)
    burnt_ns, answer = [0], nvml._nvmlGpmMetricsGet

    def costly(question):
        burnt_ns[0] += 2 * MS  # 0.4 % of 500 ms
        return answer(question)

    nvml._nvmlGpmMetricsGet = costly
    monkeypatch.setattr(clock, "thread_time_ns", lambda: burnt_ns[0])
    sampler = sampled(NvmlMeter(GPU, nvml), 0.05, 2.0)
    seen = sampler.monitors()
    assert ((seen["end_ns"] - seen["start_ns"]) / MS).to_list() == [100.0, 500.0, 500.0, 500.0]
    assert sampler.core_share == pytest.approx(4 * 0.002 / 2.0)
    assert sampler.tables()[0].height > 10  # power is read as often as ever
