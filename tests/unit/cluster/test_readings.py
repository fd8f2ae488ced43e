from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.cluster.readings import Readings, saved, saved_meter, saved_monitors
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COUNTERS, POWER


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    unmonitored = ""

    def __init__(self) -> None:
        self.meter = FakeMeter()
        self.faults: list[str] = []
        self.power: list[int] = []
        self.counters: list[float] = []
        self.looks: list[int] = []
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

    def monitors(self, skip: int = 0) -> pl.DataFrame:
        rows = [("GPU-1", t, t + 1, 1.0, 0.5, None, 2e9) for t in self.looks[skip:]]
        return pl.DataFrame(rows, schema=MONITORS.schema, orient="row")


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


def test_what_performance_monitors_said_is_kept_beside_the_power(tmp_path: Path) -> None:
    killed, replacement = FakeSampler(), FakeSampler()
    first = Readings(tmp_path, 0, "GPU-1", killed, "auto")
    killed.looks = [1, 2]
    first.save()  # and is killed here
    second = Readings(tmp_path, 0, "GPU-1", replacement, "auto", resume=True)
    replacement.looks = [7]
    second.save()
    replacement.unmonitored = "given up: the driver left"
    second.stop()
    assert MONITORS.validate(second.monitors(), "test")["start_ns"].to_list() == [1, 2, 7]
    assert saved_monitors(tmp_path, 0)["nvlink_bytes_s"].to_list() == [2e9] * 3
    assert second.used.monitors == "seen beside the power"
    assert second.faults() == ["performance monitors: given up: the driver left"]
    assert saved_monitors(tmp_path, 1).is_empty()


def test_without_performance_monitors_the_meter_says_why(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.unmonitored = "NVML GPM: this GPU has no performance monitors"
    readings = Readings(tmp_path, 0, "GPU-1", sampler, "auto")
    readings.stop()
    meter = saved_meter(tmp_path, 0)
    assert meter is not None
    assert meter.monitors == "none: NVML GPM: this GPU has no performance monitors"
    assert (readings.monitors().height, readings.faults()) == (0, [])


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


def test_a_disk_that_was_full_for_a_while_costs_nothing(tmp_path: Path) -> None:
    sampler = FakeSampler()
    readings = Readings(tmp_path, 0, "GPU-1", sampler, "auto")
    sampler.power = [1]
    readings.save()
    line = (tmp_path / "power-0.jsonl").stat().st_size
    sampler.power = [1, 2, 3]
    with files_up_to(2 * line + 5), pytest.raises(OSError, match="no room"):
        readings.save()  # one and a half lines would fit
    readings.stop()
    assert readings.tables()[0]["t_ns"].to_list() == [1, 2, 3]


def test_the_meter_is_known_to_whoever_finds_the_spool(tmp_path: Path) -> None:
    Readings(tmp_path, 1, "GPU-1", FakeSampler(), "auto: NVML reads this GPU")
    meter = saved_meter(tmp_path, 1)
    assert meter is not None
    assert (meter.name, meter.device, meter.reason) == ("nvml", "GPU-1", "auto: NVML reads this GPU")
    assert saved_meter(tmp_path, 0) is None
