from __future__ import annotations

import socket
from pathlib import Path

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import hwmon as room
from magneton_dist.meters.hwmon import HwmonMeter


def chip(root: Path, number: int, name: str, files: dict[str, str]) -> Path:
    folder = root / f"hwmon{number}"
    (folder / "device").mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    for file, text in files.items():
        (folder / file).write_text(text + "\n")
    return folder


@pytest.fixture
def grace(tmp_path):
    """Two sockets; each tells its module, which contains the Grace, which contains the CPU."""
    for number, (label, microwatts) in enumerate([
        ("Module Power Socket 0", 600_000_000), ("Grace Power Socket 0", 200_000_000),
        ("CPU Power Socket 0", 150_000_000), ("Grace Power Socket 1", 180_500_000),
    ]):  # fmt: skip
        chip(tmp_path, number, "power_meter", {
            "device/power1_average": str(microwatts), "device/power1_oem_info": label,
            "device/power1_average_interval": "100",
        })  # fmt: skip
    return tmp_path


def test_grace_sockets_add_up_and_nothing_counts_twice(grace):
    meter = HwmonMeter(grace)
    reading = meter.read()
    assert (reading.watts, reading.joules, reading.reason) == (380.5, None, "")
    assert (meter.sensor, meter.counter, meter.window_ns) == ("hwmon-average", "", 100_000_000)
    assert meter.device == f"{socket.gethostname()}/Grace Power Socket 0+Grace Power Socket 1"
    assert "Grace" in meter.source


def test_energy_counters_of_sockets_are_preferred_and_cores_left_out(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    folder = chip(tmp_path, 0, "amd_energy", {
        "energy1_input": "1000000", "energy1_label": "Ecore000",
        "energy2_input": "7000000", "energy2_label": "Esocket0",
    })  # fmt: skip
    meter = HwmonMeter(tmp_path)
    clock.advance(2.0)
    (folder / "energy1_input").write_text("91000000")
    (folder / "energy2_input").write_text("307000000")
    reading = meter.read()
    assert (reading.joules, reading.watts) == (300.0, 150.0)
    assert (meter.sensor, meter.counter, meter.window_ns) == ("hwmon-energy", "hwmon-energy", 0)


def test_a_lone_sensor_is_used_under_its_chips_name(tmp_path):
    chip(tmp_path, 0, "coretemp", {"temp1_input": "41000"})
    chip(tmp_path, 1, "board", {"power1_average": "55000000"})
    meter = HwmonMeter(tmp_path)
    assert meter.read().watts == 55.0
    assert meter.device.endswith("/board")


def test_of_several_unknown_sensors_none_is_picked(tmp_path):
    chip(tmp_path, 0, "board", {"power1_average": "55000000", "power2_average": "20000000"})
    with pytest.raises(MeterError, match="may contain each other"):
        HwmonMeter(tmp_path)


def test_a_machine_without_sensors_says_so(tmp_path):
    with pytest.raises(MeterError, match="no power"):
        HwmonMeter(tmp_path)


@pytest.mark.parametrize(("text", "reason"), [("no number", "invalid literal"), ("0", "impossible"), ("", "invalid")])
def test_a_file_that_fails_is_a_gap(grace, text, reason):
    meter = HwmonMeter(grace)
    for number in (1, 3):
        (grace / f"hwmon{number}" / "device" / "power1_average").write_text(text)
    reading = meter.read()
    assert reading.watts is None
    assert reason in reading.reason


def test_a_counter_that_sticks_is_a_gap(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    chip(tmp_path, 0, "amd_energy", {"energy1_input": "7000000", "energy1_label": "Esocket0"})
    meter = HwmonMeter(tmp_path)
    clock.advance(30)
    reading = meter.read()
    assert (reading.watts, reading.joules) == (None, None)
    assert "Esocket0: energy counter has not moved" in reading.reason


def test_every_process_of_the_host_shares_it(grace):
    assert "every process" in HwmonMeter(grace).conditions().shared
