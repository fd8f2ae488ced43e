from __future__ import annotations

import time

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import nvml as room
from magneton_dist.meters.nvml import NvmlMeter, visible_gpus

GPUS = ("GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000")  # of the fake
MIG = "MIG-cccc4444-0000"  # a slice of the last one


def test_power_comes_with_the_drivers_time_on_our_clock(nvml):
    meter = NvmlMeter(GPUS[0], nvml)
    reading, now_ns = meter.read(), time.monotonic_ns()
    assert reading.watts == 124.0
    assert 25e6 < now_ns - reading.t_ns < 300e6  # the fake's value is 30 ms old
    assert (meter.sensor, meter.window_ns, meter.provenance) == ("nvml-instant", 25_000_000, "measured")
    assert "NVIDIA H200" in meter.source
    assert "580.1" in meter.source


def test_a_value_that_was_not_updated_keeps_its_time(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    nvml.stamp_us = clock.time_ns() // 1000
    meter = NvmlMeter(GPUS[0], nvml)
    first = meter.read()
    clock.advance(0.05)
    clock.wall_offset_ns += 7_000_000  # the wall clock was adjusted
    assert meter.read().t_ns == first.t_ns == 1_000_000_000
    nvml.stamp_us = clock.time_ns() // 1000 - 10_000
    assert meter.read().t_ns == clock.now_ns - 10_000_000


def test_a_timestamp_that_is_none_is_replaced_by_the_time_of_reading(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    nvml.stamp_us = 0
    meter = NvmlMeter(GPUS[0], nvml)
    clock.advance(1)
    nvml.stamp_us = 12345
    assert meter.read().t_ns == clock.now_ns


@pytest.mark.parametrize("stamp_us", [0, 12345])
def test_a_driver_without_timestamps_has_a_reading_each_time(nvml, clock, monkeypatch, stamp_us):
    monkeypatch.setattr(room, "time", clock)
    nvml.stamp_us = stamp_us
    meter = NvmlMeter(GPUS[0], nvml)
    for _ in range(3):
        clock.advance(0.1)
        assert meter.read().t_ns == clock.now_ns


def test_a_wall_clock_that_is_set_back_puts_no_reading_into_the_future(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    nvml.stamp_us = clock.time_ns() // 1000
    meter = NvmlMeter(GPUS[0], nvml)
    clock.advance(0.1)
    nvml.stamp_us = clock.time_ns() // 1000
    clock.wall_offset_ns -= 5_000_000_000
    assert meter.read().t_ns == clock.now_ns


def test_energy_counts_from_opening(nvml):
    meter = NvmlMeter(GPUS[0], nvml)
    assert meter.read().joules == 0.0
    nvml.energy_mj += 12_500
    assert meter.read().joules == 12.5
    assert meter.counter == "nvml-energy"


def test_a_counter_that_sticks_is_dropped_and_power_goes_on(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    meter = NvmlMeter(GPUS[0], nvml)
    clock.advance(30)
    reading = meter.read()
    assert reading.joules is None
    assert "not moved" in reading.reason
    assert reading.watts == 124.0


@pytest.mark.parametrize("power_mw", [0, 1_400_001])
def test_impossible_power_is_a_gap(nvml, power_mw):
    meter = NvmlMeter(GPUS[0], nvml)
    nvml.power_mw = power_mw
    reading = meter.read()
    assert reading.watts is None
    assert "impossible" in reading.reason


def test_without_instant_power_the_average_is_used_and_said(nvml):
    nvml.field_error = 3
    meter = NvmlMeter(GPUS[0], nvml)
    assert (meter.sensor, meter.window_ns, meter.read().watts) == ("nvml-average", 1_000_000_000, 99.0)
    assert "instant power: Not Supported" in meter.source


def test_without_any_power_the_counter_gives_watts_between_its_ticks(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    nvml.errors = {"nvmlDeviceGetFieldValues": 3, "nvmlDeviceGetPowerUsage": 3}
    meter = NvmlMeter(GPUS[0], nvml)
    opened_ns = clock.now_ns
    assert (meter.sensor, meter.window_ns) == ("nvml-energy", 0)
    assert (meter.read().t_ns, meter.read().watts) == (opened_ns, None)
    clock.advance(0.1)
    nvml.energy_mj += 20_000
    reading = meter.read()
    assert (reading.t_ns, reading.watts, reading.joules) == (clock.now_ns, pytest.approx(200.0), 20.0)
    clock.advance(0.05)
    assert meter.read().t_ns == reading.t_ns  # no tick: nothing new


@pytest.mark.parametrize(("code", "words"), [(3, "Not Supported"), (4, "Insufficient Permissions")])
def test_a_gpu_that_tells_nothing_is_unmeasured_with_the_reason(nvml, code, words):
    for name in ("GetFieldValues", "GetPowerUsage", "GetTotalEnergyConsumption"):
        nvml.errors[f"nvmlDevice{name}"] = code
    meter = NvmlMeter(GPUS[0], nvml)
    reading = meter.read()
    assert (meter.provenance, reading.watts, reading.joules) == ("unmeasured", None, None)
    assert words in reading.reason


def test_an_error_while_running_is_a_gap_with_its_reason(nvml):
    meter = NvmlMeter(GPUS[0], nvml)
    nvml.errors = {"nvmlDeviceGetFieldValues": 4, "nvmlDeviceGetTotalEnergyConsumption": 4}
    reading = meter.read()
    assert (reading.watts, reading.joules, reading.reason) == (None, None, "Insufficient Permissions")
    nvml.errors = {}
    assert meter.read().watts == 124.0


@pytest.mark.parametrize(
    ("device", "uuid"),
    [(GPUS[1], GPUS[1]), ("aaaa1111-0000", GPUS[0]), ("GPU-bbbb3", GPUS[2]), ("1", GPUS[1]), (MIG, GPUS[2])],
)
def test_devices_are_found_by_uuid(nvml, device, uuid):
    assert NvmlMeter(device, nvml).device == uuid


def test_an_unknown_device_is_refused_and_nvml_given_back(nvml):
    with pytest.raises(MeterError, match="GPU-bbbb2222-0000"):
        NvmlMeter("GPU-ffff", nvml)
    assert nvml.opened == 0


def test_without_a_driver_the_error_says_what_to_do(nvml):
    nvml.errors = {"nvmlInit": 12}
    with pytest.raises(MeterError, match=r"Library Not Found \(install the NVIDIA driver"):
        NvmlMeter(GPUS[0], nvml)


def test_an_error_while_opening_gives_nvml_back(nvml):
    nvml.errors = {"nvmlDeviceGetCount": 4}
    with pytest.raises(MeterError, match="Insufficient Permissions"):
        NvmlMeter(GPUS[0], nvml)
    assert nvml.opened == 0


def test_closing_twice_gives_nvml_back_once(nvml):
    meter = NvmlMeter(GPUS[0], nvml)
    meter.close()
    meter.close()
    assert nvml.opened == 0


def test_conditions(nvml):
    meter = NvmlMeter(GPUS[0], nvml)
    calm = meter.conditions()
    assert (calm.temperature_c, calm.power_cap_w, calm.throttled, calm.shared) == (41.0, 700.0, (), "")
    nvml.reasons = 0x1 | 0x4 | 0x40  # idle is no throttling; power cap and heat are
    nvml.processes = 3
    rough = meter.conditions()
    assert rough.throttled == ("software power cap", "hardware thermal slowdown")
    assert "3 processes" in rough.shared
    nvml.errors = {"nvmlDeviceGetTemperature": 3, "nvmlDeviceGetEnforcedPowerLimit": 3}
    assert meter.conditions().temperature_c is None
    assert meter.conditions().power_cap_w is None


def test_a_slice_is_flagged_as_shared(nvml):
    assert "MIG" in NvmlMeter(MIG, nvml).conditions().shared


def test_visible_gpus_asks_the_machine(nvml):
    visible = visible_gpus(f"2,{MIG}", nvml)
    assert (visible.uuids, visible.shared) == ((GPUS[2], GPUS[2]), {GPUS[2]})
    assert nvml.opened == 0
