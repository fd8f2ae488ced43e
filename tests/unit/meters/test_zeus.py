from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import zeus as room
from magneton_dist.meters.zeus import ZeusMeter


class Gpu:
    """Answers like `zeus.device.gpu.common.GPU`, in mW and mJ."""

    def __init__(self, watts: float = 300.0, counts: bool = True) -> None:
        self.milliwatts, self.millijoules, self.counts = watts * 1e3, 1e6, counts

    def get_name(self) -> str:
        return "MI300X"

    def supports_get_total_energy_consumption(self) -> bool:
        return self.counts

    def get_total_energy_consumption(self) -> float:
        return self.millijoules

    def get_instant_power_usage(self) -> float:
        if self.milliwatts < 0:
            raise RuntimeError("no permission")
        return self.milliwatts

    def get_gpu_temperature(self) -> int:
        return 55


def test_power_and_energy_of_the_gpu_asked_for():
    gpus = [Gpu(100.0), Gpu(300.0)]
    meter = ZeusMeter("1", SimpleNamespace(gpus=gpus))
    gpus[1].millijoules += 25_000
    reading = meter.read()
    assert (reading.watts, reading.joules, reading.reason) == (300.0, 25.0, "")
    assert (meter.device, meter.conditions().temperature_c) == ("1", 55.0)
    assert "MI300X" in meter.source


def test_a_gpu_without_a_counter_has_no_joules():
    meter = ZeusMeter("0", SimpleNamespace(gpus=[Gpu(counts=False)]))
    assert meter.read().joules is None
    assert meter.counter == ""


def test_the_only_gpu_is_taken_under_the_name_it_was_asked_by():
    assert ZeusMeter("GPU-4711", SimpleNamespace(gpus=[Gpu()])).device == "GPU-4711"


def test_a_gpu_that_cannot_be_told_is_refused():
    with pytest.raises(MeterError, match="it sees 0, 1"):
        ZeusMeter("GPU-4711", SimpleNamespace(gpus=[Gpu(), Gpu()]))


def test_a_reading_that_fails_is_a_gap():
    gpu = Gpu()
    meter = ZeusMeter("0", SimpleNamespace(gpus=[gpu]))
    gpu.milliwatts = -1
    reading = meter.read()
    assert (reading.watts, reading.reason) == (None, "power: no permission")


def test_a_temperature_that_fails_is_unknown():
    gpu = Gpu()
    meter = ZeusMeter("0", SimpleNamespace(gpus=[gpu]))

    def lost() -> int:
        raise RuntimeError("device lost")

    gpu.get_gpu_temperature = lost
    assert meter.conditions().temperature_c is None


def test_a_counter_that_sticks_is_dropped(clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    meter = ZeusMeter("0", SimpleNamespace(gpus=[Gpu()]))
    clock.advance(30)
    reading = meter.read()
    assert (reading.watts, reading.joules) == (300.0, None)
    assert "not moved" in reading.reason


def test_what_cannot_be_read_at_all_is_refused():
    with pytest.raises(MeterError, match="no permission"):
        ZeusMeter("0", SimpleNamespace(gpus=[Gpu(watts=-1, counts=False)]))


def test_without_zeus_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    monkeypatch.setitem(sys.modules, "zeus", None)
    with pytest.raises(MeterError, match=r"magneton-dist\[zeus\]"):
        ZeusMeter("0")


def test_a_cpu_is_somebody_elses():
    with pytest.raises(MeterError, match="rapl"):
        ZeusMeter("cpu")
