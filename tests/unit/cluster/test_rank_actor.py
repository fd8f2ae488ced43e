from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.cluster.analysis import Analysis, Announcement, Collected, CollectRequest
from magneton_dist.cluster.rank_actor import RankActor
from magneton_dist.errors import ClusterError
from magneton_dist.records.manifest import Clock, RankRun
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COUNTERS, POWER


class FakeMeter:
    name, provenance, source = "nvml", "measured", "NVML"

    def __init__(self, device: str) -> None:
        self.device = device
        self.open = True

    def close(self) -> None:
        self.open = False


class FakeSampler:
    """One reading of 100 W, and two throttlings."""

    def __init__(self, device: str) -> None:
        self.meter = FakeMeter(device)
        self.faults: list[str] = ["one gap"]
        self.throttled = ["sw_power_cap"]
        self.shared = "2 processes compute on it"
        self.temperature_c = (40.0, 55.0)
        self.power_cap_w = 700.0
        self.unmonitored = ""

    def start(self) -> None:
        pass

    def stop(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return self.tables()

    def tables(self, skip: tuple[int, int] = (0, 0)) -> tuple[pl.DataFrame, pl.DataFrame]:
        rows = [(self.meter.device, 5, 100.0, "nvml-instant", 10)][skip[0] :]
        return pl.DataFrame(rows, schema=POWER.schema, orient="row"), COUNTERS.empty()

    def monitors(self, skip: int = 0) -> pl.DataFrame:
        rows = [(self.meter.device, 0, 5, 1.0, 0.0, 0.0, 0.0)][skip:]
        return pl.DataFrame(rows, schema=MONITORS.schema, orient="row")


class Opened:
    """Remembers what was opened and collected."""

    def __init__(self) -> None:
        self.samplers: list[FakeSampler] = []
        self.requests: list[CollectRequest] = []

    def sampler(self, spec: str, device: str, period_s: float) -> tuple[FakeSampler, str]:
        self.samplers.append(FakeSampler(device))
        return self.samplers[-1], f"{spec} every {period_s:g} s"

    def collect(self, request: CollectRequest) -> Collected:
        self.requests.append(request)
        return Collected(arrivals=request.rank)


def join(arrivals: Sequence[Any], clocks: Mapping[int, Clock]) -> int:
    return len(arrivals)


def summarise(folder: Path, rank: RankRun, joined: Any, options: Any) -> tuple[Any, ...]:
    return folder, rank.rank, joined, options


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def actor(opened: Opened) -> RankActor:
    uuids = {"3": ["GPU-three"]}
    analysis = Analysis(opened.sampler, opened.collect, join, summarise, lambda v: uuids[v], options="o")
    return RankActor(analysis, "auto", 0.05)


def announced(device: str | None) -> Announcement:
    return Announcement(7, 1, 8, 4711, 1, 0, device, True, "l1-0")


def test_the_meter_of_the_slot_s_gpu_is_opened_by_uuid(actor: RankActor, opened: Opened, tmp_path: Path) -> None:
    used = actor.open(tmp_path / "spool", 1, "3", resume=False)
    assert (used.device, used.reason) == ("GPU-three", "auto every 0.05 s")
    assert actor.attach(tmp_path / "spool", announced("GPU-three")).device == "GPU-three"
    assert len(opened.samplers) == 1


def test_a_rank_on_another_device_is_metered_there(actor: RankActor, opened: Opened, tmp_path: Path) -> None:
    actor.open(tmp_path, 1, "3", resume=False)
    used = actor.attach(tmp_path, announced("GPU-five"))
    assert used.device == "GPU-five"
    first, second = opened.samplers
    assert not first.meter.open
    assert second.meter.open
    actor.collect(tmp_path / "run", tmp_path, 7, announced("GPU-five"), owner=True)
    power = opened.requests[0].power
    assert power is not None
    assert power["device"].to_list() == ["GPU-five"]  # nothing of the device it did not run on


def test_a_rank_that_never_says_its_device_keeps_the_meter_of_its_slot(
    actor: RankActor, opened: Opened, tmp_path: Path
) -> None:
    actor.open(tmp_path, 1, "3", resume=False)
    assert actor.attach(tmp_path, announced(None)).device == "GPU-three"
    actor.collect(tmp_path / "run", tmp_path, 7, announced(None), owner=True)
    assert (len(opened.samplers), opened.requests[0].device) == (1, "GPU-three")


def test_the_owner_of_a_device_brings_its_readings(actor: RankActor, opened: Opened, tmp_path: Path) -> None:
    actor.open(tmp_path, 1, None, resume=False)
    collected, conditions = actor.collect(tmp_path / "run", tmp_path, 7, announced("cpu"), owner=True)
    request = opened.requests[0]
    assert collected.arrivals == 7
    assert request.segments == tmp_path / "l1-0"
    assert request.power is not None
    assert request.power["watts"].to_list() == [100.0]
    assert request.monitors is not None
    assert request.monitors["end_ns"].to_list() == [5]
    assert conditions.temperature_c == (40.0, 55.0)
    assert conditions.power_cap_w == 700.0
    assert conditions.faults == ("one gap",)
    assert conditions.disturbed == ("sw_power_cap", "2 processes compute on it")


def test_a_rank_that_shares_a_device_brings_none(actor: RankActor, opened: Opened, tmp_path: Path) -> None:
    actor.open(tmp_path, 1, None, resume=False)
    actor.close()
    _, conditions = actor.collect(tmp_path / "run", tmp_path, 7, announced("cpu"), owner=False)
    assert opened.requests[0].power is None
    assert opened.requests[0].monitors is None
    assert conditions.disturbed == ()


def test_each_run_has_a_meter_of_its_own(actor: RankActor, opened: Opened, tmp_path: Path) -> None:
    actor.open(tmp_path / "0", 1, None, resume=False)
    actor.open(tmp_path / "1", 1, None, resume=False)
    assert [sampler.meter.open for sampler in opened.samplers] == [False, True]


def test_the_sums_are_those_of_the_attached_ranks(actor: RankActor, tmp_path: Path) -> None:
    actor.open(tmp_path, 1, None, resume=False)
    assert actor.sums() == {}
    actor.attach(tmp_path, announced("cpu"))
    (tmp_path / "l1-0").mkdir()
    (tmp_path / "l1-0" / "000000.jsonl").write_text('["step", 0, 1, 2, "measured", null, null]\n')
    assert actor.sums()["l1-0"].steps == 1
    assert (tmp_path / "power-1.jsonl").read_text().count("\n") == 1  # on disk, should the actor be killed now


def test_tables_are_kept_until_they_are_stored_by_a_driver_elsewhere(actor: RankActor, tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "00007"
    folder.mkdir(parents=True)
    (folder / "steps.parquet").write_bytes(b"PAR1")
    assert actor.size(folder) == 4
    assert actor.deliver(folder) == {"steps.parquet": b"PAR1"}
    assert actor.deliver(folder) == {"steps.parquet": b"PAR1"}  # the first answer may have come too late
    actor.delivered(folder)
    assert not folder.exists()


def test_attaching_without_a_meter_is_an_error(actor: RankActor, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no meter was opened"):
        actor.attach(tmp_path, announced("cpu"))


def test_the_summary_is_made_with_the_options(actor: RankActor, tmp_path: Path) -> None:
    assert actor.summarise(tmp_path, RankRun(7, 1, "n"), "joined") == (tmp_path, 7, "joined", "o")
