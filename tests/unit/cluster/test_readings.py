from __future__ import annotations

from pathlib import Path

import polars as pl

from magneton_dist.cluster.readings import Readings, saved, saved_meter
from magneton_dist.records.schema import COUNTERS, POWER


class FakeMeter:
    name, provenance, source, device = "nvml", "measured", "NVML", "GPU-1"
    closed = 0

    def close(self) -> None:
        self.closed += 1


class FakeSampler:
    """Has read what the test says it has."""

    throttled: list[str] = []  # noqa: RUF012 - as the real one, per instance below
    shared = ""
    temperature_c = None
    power_cap_w = None

    def __init__(self) -> None:
        self.meter = FakeMeter()
        self.faults: list[str] = []
        self.power: list[int] = []
        self.counters: list[float] = []
        self.stopped = 0

    def start(self) -> None:
        pass

    def stop(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        self.stopped += 1
        return self.tables()

    def tables(self, skip: tuple[int, int] = (0, 0)) -> tuple[pl.DataFrame, pl.DataFrame]:
        power = [("GPU-1", t, 100.0 + t, "nvml-instant", 10) for t in self.power[skip[0] :]]
        counters = [("GPU-1", i, j, "nvml-energy") for i, j in enumerate(self.counters)][skip[1] :]
        return (
            pl.DataFrame(power, schema=POWER.schema, orient="row"),
            pl.DataFrame(counters, schema=COUNTERS.schema, orient="row"),
        )


def test_everything_read_is_there_at_the_end_in_the_declared_schema(tmp_path: Path) -> None:
    sampler = FakeSampler()
    readings = Readings(tmp_path, 0, "GPU-1", sampler, "auto")
    sampler.power, sampler.counters = [1, 2], [0.0, 5.0]
    readings.save()
    assert readings.joules == 5.0
    sampler.power, sampler.counters = [1, 2, 3], [0.0, 5.0, 7.5]
    readings.stop()
    power, counters = readings.tables()
    assert power["t_ns"].to_list() == [1, 2, 3]
    assert power["watts"].to_list() == [101.0, 102.0, 103.0]
    assert counters["joules"].to_list() == [0.0, 5.0, 7.5]
    POWER.validate(power, "test")
    COUNTERS.validate(counters, "test")


def test_stopping_twice_closes_the_meter_once(tmp_path: Path) -> None:
    sampler = FakeSampler()
    readings = Readings(tmp_path, 0, "GPU-1", sampler, "auto")
    readings.stop()
    readings.stop()
    assert (sampler.stopped, sampler.meter.closed) == (1, 1)


def test_a_replacement_continues_power_and_gives_the_counter_up(tmp_path: Path) -> None:
    killed = FakeSampler()
    first = Readings(tmp_path, 0, "GPU-1", killed, "auto")
    killed.power, killed.counters = [1, 2], [0.0, 5.0]
    first.save()  # and is killed here
    replacement = FakeSampler()
    second = Readings(tmp_path, 0, "GPU-1", replacement, "auto", resume=True)
    replacement.power, replacement.counters = [9], [0.0]
    second.stop()
    power, counters = second.tables()
    assert power["t_ns"].to_list() == [1, 2, 9]
    assert counters.height == 0
    assert any("counter was interrupted" in fault for fault in second.faults())


def test_a_new_run_begins_anew(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.power = [1]
    Readings(tmp_path, 0, "GPU-1", sampler, "auto").stop()
    fresh = Readings(tmp_path, 0, "GPU-1", FakeSampler(), "auto")
    assert fresh.tables()[0].height == 0


def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.power = [1, 2]
    Readings(tmp_path, 3, "GPU-1", sampler, "auto").save()
    path = tmp_path / "power-3.jsonl"
    path.write_text(path.read_text() + '{"device":"GPU-1","t_ns":3,"wat')
    power, counters = saved(tmp_path, 3)
    assert power["t_ns"].to_list() == [1, 2]
    assert counters.height == 0
    replacement = FakeSampler()
    resumed = Readings(tmp_path, 3, "GPU-1", replacement, "auto", resume=True)
    replacement.power = [4]
    resumed.stop()
    assert resumed.tables()[0]["t_ns"].to_list() == [1, 2, 4]


def test_the_meter_is_known_to_whoever_finds_the_spool(tmp_path: Path) -> None:
    Readings(tmp_path, 1, "GPU-1", FakeSampler(), "auto: NVML reads this GPU")
    meter = saved_meter(tmp_path, 1)
    assert meter is not None
    assert (meter.name, meter.device, meter.reason) == ("nvml", "GPU-1", "auto: NVML reads this GPU")
    assert saved_meter(tmp_path, 0) is None
