from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magneton_dist.cluster import recovery
from magneton_dist.cluster.analysis import Analysis, Collected, CollectRequest
from magneton_dist.cluster.clocks import SAME, clock_identity
from magneton_dist.cluster.origin import mark
from magneton_dist.cluster.processes import look_up
from magneton_dist.cluster.recovery import finish_unfinished, recover
from magneton_dist.errors import RecordError
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.store import RunRecord, write_manifest

DRAFT = Manifest("audit", "a", 2, "now", 3, ["torchrun"], None, [], {}, {}, missing=["everything"])
METER = MeterUsed("modelled:h200", "modelled", "a model", "cpu")


def announce(run: Path, rank: int, node: int = 0, pid: int = 2**22 - 1, start_ticks: int = 1) -> Path:
    """The spool of a rank as the tracer and the actors leave it; by default of a process that is gone."""
    spool = run / "spool" / str(node)
    (spool / f"l{rank}-0").mkdir(parents=True)
    told = {
        "format": 1, "rank": rank, "local_rank": rank, "world_size": 3, "pid": pid, "start_ticks": start_ticks,
        "node": 0, "restart": 0, "device": "cpu", "cuda_visible_devices": None, "distributed": True,
        "monotonic_ns": 1, "wall_ns": 1, "segments": f"l{rank}-0",
    }  # fmt: skip
    (spool / f"rank-{rank}-0.json").write_text(json.dumps(told))
    (spool / "clock").write_text(clock_identity())
    (spool / f"meter-{rank}.json").write_text(json.dumps({f: getattr(METER, f) for f in METER.__struct_fields__}))
    return spool


class Fake:
    """An analysis that remembers what it was given; `broken` ranks raise."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken
        self.clocks: Mapping[int, Clock] = {}

    def collect(self, request: CollectRequest) -> Collected:
        if request.rank == self.broken:
            raise ValueError("torn")
        return Collected(arrivals=request.rank, truncated={"ops": 5})

    def join(self, arrivals: Sequence[Any], clocks: Mapping[int, Clock]) -> list[Any]:
        self.clocks = clocks
        return list(arrivals)

    def summarise(self, folder: Path, rank: RankRun, joined: Any, options: Any) -> tuple[Any, ...]:
        return folder.name, rank.rank, joined, options

    @property
    def analysis(self) -> Analysis:
        return Analysis(lambda *_: pytest.fail("opened"), self.collect, self.join, self.summarise, lambda _: [], "o")


def test_what_the_actors_would_have_done_is_done(tmp_path: Path) -> None:
    announce(tmp_path, 0)
    announce(tmp_path, 1)
    (tmp_path / "output.log").write_text("the last words")
    fake = Fake()
    outcome = recover(tmp_path, DRAFT, fake.analysis, "the coordinator died")
    assert outcome.summaries == {0: ("00000", 0, [0, 1], "o"), 1: ("00001", 1, [0, 1], "o")}
    assert fake.clocks == {0: SAME, 1: SAME}
    assert list(outcome.missing) == ["the end of the run: the coordinator died", "rank 2: nothing of it was found"]
    assert outcome.manifest.missing == list(outcome.missing)
    assert [(rank.rank, rank.meter, rank.truncated) for rank in outcome.manifest.ranks] == [
        (0, METER, {"ops": 5}), (1, METER, {"ops": 5}),
    ]  # fmt: skip
    assert outcome.output == "the last words"
    assert outcome.exit_code is None
    assert not (tmp_path / "spool").exists()


def test_a_rank_that_had_not_said_its_device_is_found(tmp_path: Path) -> None:
    path = announce(tmp_path, 0) / "rank-0-0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": None}))
    outcome = recover(tmp_path, DRAFT, Fake().analysis, "x")
    assert [rank.device for rank in outcome.manifest.ranks] == ["cpu"]


def test_a_spool_that_cannot_be_read_is_kept_and_the_others_are_used(tmp_path: Path) -> None:
    announce(tmp_path, 0)
    announce(tmp_path, 1)
    outcome = recover(tmp_path, DRAFT, Fake(broken=0).analysis, "x")
    assert list(outcome.summaries) == [1]
    assert "tables of rank 0: collect: ValueError: torn" in outcome.missing
    assert (tmp_path / "spool").exists()


def test_without_time_the_spools_are_kept_and_the_ranks_are_known(tmp_path: Path) -> None:
    announce(tmp_path, 0)
    outcome = recover(tmp_path, DRAFT, Fake().analysis, "SIGINT", finish=False)
    assert outcome.summaries == {}
    assert [rank.rank for rank in outcome.manifest.ranks] == [0]
    assert (tmp_path / "spool" / "0" / "rank-0-0.json").exists()


def test_the_clock_of_another_host_is_not_ours(tmp_path: Path) -> None:
    announce(tmp_path, 0)
    (announce(tmp_path, 1, node=1) / "clock").write_text("another boot")
    fake = Fake()
    recover(tmp_path, DRAFT, fake.analysis, "x")
    assert fake.clocks == {0: SAME}


def test_a_rank_that_still_runs_is_waited_for(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "0.3"])
    process = look_up(child.pid)
    assert process is not None
    announce(tmp_path, 0, pid=child.pid, start_ticks=process.start_ticks)
    start_s = time.monotonic()
    outcome = recover(tmp_path, DRAFT, Fake().analysis, "x")
    assert time.monotonic() - start_s > 0.1
    assert not any("could not be ended" in what for what in outcome.missing)
    child.wait()


def test_a_rank_that_cannot_be_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_GONE_S", 0.0)
    child = subprocess.Popen(["sleep", "30"])
    process = look_up(child.pid)
    assert process is not None
    announce(tmp_path, 0, pid=child.pid, start_ticks=process.start_ticks)
    outcome = recover(tmp_path, DRAFT, Fake().analysis, "x")
    child.kill()
    child.wait()
    assert any("could not be ended" in what for what in outcome.missing)


def test_an_empty_run_is_recovered_as_such(tmp_path: Path) -> None:
    outcome = recover(tmp_path, DRAFT, Fake().analysis, "x")
    assert outcome.manifest.ranks == []
    assert sum(what.endswith("nothing of it was found") for what in outcome.missing) == 3


def test_an_unfinished_audit_is_finished_in_place(tmp_path: Path) -> None:
    late = msgspec.structs.replace(DRAFT, missing=["the end of the run: SIGINT", "tables and figures: not yet"])
    for name, draft in (("a/0", DRAFT), ("a/1", late), ("a/warmup0", DRAFT)):
        write_manifest(tmp_path / name, draft)
        announce(tmp_path / name, 0)
    write_manifest(tmp_path / "a" / "2", DRAFT)  # finished: no spool
    outcomes = finish_unfinished(tmp_path, Fake().analysis)
    assert [outcome.folder.name for outcome in outcomes] == ["0", "1"]
    first, second = (RunRecord(tmp_path / "a" / name).manifest for name in "01")
    assert first.missing[0] == "the end of the run: its audit ended first"
    assert second.missing[0] == "the end of the run: SIGINT"
    assert [rank.rank for rank in first.ranks] == [0]
    assert finish_unfinished(tmp_path, Fake().analysis) == []


def test_a_run_that_is_being_made_on_another_host_is_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "a" / "0"
    write_manifest(run, DRAFT)
    announce(run, 0)
    (run / "origin").write_text(f"elsewhere {2**22 - 1} 1 abcd")
    with pytest.raises(RecordError, match="on elsewhere"):
        finish_unfinished(tmp_path, Fake().analysis)
    assert (run / "spool").exists()


def test_a_finished_run_keeps_its_manifest_though_a_spool_is_left(tmp_path: Path) -> None:
    run = tmp_path / "a" / "0"
    done = msgspec.structs.replace(DRAFT, exit_code=0, missing=["tables of rank 0: torn"], finished=True)
    write_manifest(run, done)
    announce(run, 0)
    assert finish_unfinished(tmp_path, Fake().analysis) == []
    assert RunRecord(run).manifest == done


def test_a_manifest_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "a" / "0"
    write_manifest(run, msgspec.structs.replace(DRAFT, schema_version=10_000))
    announce(run, 0)
    with pytest.raises(RecordError, match="schema version"):
        finish_unfinished(tmp_path, Fake().analysis)


def test_a_run_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "a" / "0"
    write_manifest(run, DRAFT)
    announce(run, 0)
    (run / "origin").write_text(mark())
    with pytest.raises(RecordError, match=f"is being made by process {os.getpid()}"):
        finish_unfinished(tmp_path, Fake().analysis)
    assert (run / "spool").exists()
