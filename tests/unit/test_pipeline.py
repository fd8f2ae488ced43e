"""Two ranks drawn by hand, from spool to audit.

    seconds   0      10          20    25    30
    rank 0    |warmup|  compute   |wait |trans|
    rank 1    |warmup|    compute       |trans|

One all-reduce; rank 1 arrives last, at 25 s; both leave at 30 s.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest

from magneton_dist import audits, drawn_runs, pipeline
from magneton_dist.cluster.analysis import CollectRequest
from magneton_dist.config import Compare
from magneton_dist.energy.attribution import PowerIntegral
from magneton_dist.errors import RecordError
from magneton_dist.meters import load_profile
from magneton_dist.meters.sensor import Sensor
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.monitors import MONITORS, read_monitors
from magneton_dist.records.schema import POWER
from magneton_dist.records.store import rank_folder, write_manifest, write_rank
from magneton_dist.tracer.rows import FIELDS

S = 1_000_000_000
METER = MeterUsed("modelled:h200", "modelled", "modelled: H200", "cpu")


def row(kind: str, /, **fields: object) -> str:
    return json.dumps([kind, *(fields.get(name) for name in FIELDS[kind])])


def spool(folder: Path, issue_s: int) -> Path:
    """One rank that computes until `issue_s`, then blocks in the all-reduce until 30 s."""
    folder.mkdir(parents=True)
    clock = [(0, 0), (10, 10), (issue_s, issue_s), (30, issue_s)]
    lines = [row("stamp", t_ns=t * S, cpu_ns=c * S, delay_ns=0) for t, c in clock]
    lines += [
        row("step", step=0, start_ns=0, end_ns=10 * S, kind="warm-up", units=100, unit="tokens"),
        row("step", step=1, start_ns=10 * S, end_ns=30 * S, kind="measured", units=100, unit="tokens"),
        row("collective", call_id=0, group="0", group_size=2, group_rank=0 if issue_s == 20 else 1, seq=1,
            op="allreduce_", origin="ddp", bytes=400, dtype="float32", zero_payload=False, step=1,
            issue_ns=issue_s * S, start_ns=issue_s * S, end_ns=30 * S, stack_id=0),
        row("stack", stack_id=0, frames=[["train.py", 7, "main"]]),
        row("mark", name="exit", t_ns=31 * S, detail=None),
    ]  # fmt: skip
    (folder / "000000.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A recorded run of both ranks, as the cluster leaves it."""
    folder = tmp_path / "audit" / "join" / "0"
    collected = []
    for rank, issue_s in enumerate((20, 25)):
        request = CollectRequest(folder, rank, spool(tmp_path / f"spool{rank}", issue_s), None, None, "cpu")
        collected.append(pipeline.collect(request))
    ranks = [RankRun(rank, rank, "node", device="cpu", exit_code=0, meter=METER) for rank in (0, 1)]
    manifest = Manifest("audit", "join", 0, "2026-01-01T00:00:00Z", 2, ["train"], 0, ranks, {"node": Clock()}, {})
    write_manifest(folder, manifest)
    settings = audits.Settings(
        name="audit", started=manifest.started, baseline="join", compare=Compare(), profile=load_profile("h200")
    )
    settings.write(folder.parent.parent)
    assert [c.missing for c in collected] == [[], []]
    return folder


def test_states_and_joules_are_those_of_the_drawing(run: Path) -> None:
    outcome = audits.audit(run.parent.parent)
    ranks = outcome.audit.variants["join"].ranks
    seconds = [{key: round(share.s, 6) for key, share in rank.states.items()} for rank in ranks]
    assert seconds == [
        {"working/compute": 10.0, "working/transfer": 5.0, "working/wait": 5.0},
        {"working/compute": 15.0, "working/transfer": 5.0},
    ]
    assert ranks[0].energy_j == pytest.approx(10 * 138 + 5 * 124 + 5 * 126)
    assert ranks[1].energy_j == pytest.approx(15 * 138 + 5 * 126)
    variant = outcome.audit.variants["join"]
    assert variant.energy_per_unit_j is not None
    assert variant.energy_per_unit_j.mean == pytest.approx((2630 + 2700) / 200)
    assert variant.unit == "tokens"
    assert outcome.audit.energy_kind == "modelled"


def test_the_power_table_integrates_to_the_states_joules(run: Path) -> None:
    joined = pipeline.analyse(pipeline.RunRecord(run)).joined
    for rank in (0, 1):
        folder = rank_folder(run, rank)
        summary = pipeline.summarise(folder, RankRun(rank, rank, "node", meter=METER), joined)
        power = pl.read_parquet(folder / "power.parquet")
        by_hand = sum(w * n for w, n in power.select("watts", "window_ns").iter_rows()) / 1e9
        window = joined.windows[rank]
        assert (window.start_ns, window.end_ns) == (10 * S, 30 * S)
        ends = pl.Series([10 * S]).to_numpy(), pl.Series([30 * S]).to_numpy()
        assert by_hand == pytest.approx(PowerIntegral(power).joules(*ends)[0])
        assert sum(s.j or 0.0 for s in summary.states.values()) == pytest.approx(by_hand)


def test_waiting_watts_come_from_the_profile_given(run: Path) -> None:
    profile = load_profile("h200")
    idle = profile.watts["wait"].model_copy(update={"nominal": 74.0, "low": 74.0, "high": 74.0})
    cheap = profile.model_copy(update={"watts": {**profile.watts, "wait": idle}})
    outcome = audits.audit(run.parent.parent, cheap)
    assert outcome.audit.variants["join"].ranks[0].energy_j == pytest.approx(10 * 138 + 5 * 74 + 5 * 126)


def test_a_measured_rank_is_told_apart_by_the_sensor_of_its_profile(run: Path) -> None:
    # computing, until 20 s, draws 500 W, what follows 100 W; readings come half a second late
    t_ns = [t * S // 10 for t in range(100, 301)]
    watts = [(500.0 if t <= 20.5 * S else 100.0) + t // (S // 10) % 2 / 1e6 for t in t_ns]  # no two are equal
    readings = {"device": "cpu", "t_ns": t_ns, "watts": watts, "sensor": "rapl", "window_ns": 100_000_000}
    write_rank(run, 0, {"power": pl.DataFrame(readings, schema=POWER.schema)})
    measured = RankRun(0, 0, "node", meter=MeterUsed("rapl", "measured", "RAPL", "cpu"))
    joined = replace(pipeline.analyse(pipeline.RunRecord(run)).joined, sharing={})  # its device is its own
    late = Sensor(period_s=0.1, window_s=0.1, lag_s=0.5)
    profile = load_profile("h200").model_copy(update={"sensor": late})
    folder = rank_folder(run, 0)
    plain = pipeline.account_rank(folder, measured, joined).summary
    told = pipeline.account_rank(folder, measured, joined, profile).summary
    assert plain.states["working/wait"].j == pytest.approx(0.5 * 500 + 4.5 * 100)
    assert told.states["working/wait"].j == pytest.approx(5 * 100)
    assert told.states["working/compute"].j == pytest.approx(10 * 500)
    assert (told.energy_kind, told.energy_j) == ("measured", plain.energy_j)
    # the late readings put half a second of computing into the window's total: it is the residual
    assert told.residual_j == pytest.approx(0.5 * 400)


def test_a_host_whose_clock_was_not_read_is_not_aligned_with_others(run: Path) -> None:
    record = pipeline.RunRecord(run)
    ranks = [msgspec.structs.replace(rank, node=f"n{rank.rank}") for rank in record.manifest.ranks]
    write_manifest(run, msgspec.structs.replace(record.manifest, ranks=ranks, clocks={"n0": Clock()}))
    apart = pipeline.analyse(pipeline.RunRecord(run)).joined.joined
    assert 1 not in apart.clocks or apart.clocks[1].error_ns > 0  # never taken for exact
    write_manifest(run, msgspec.structs.replace(record.manifest, clocks={}))
    together = pipeline.analyse(pipeline.RunRecord(run)).joined.joined
    assert sorted(together.clocks) == [0, 1]


def test_bands_tell_the_same_run_over_time(run: Path) -> None:
    bands = drawn_runs.bands(run)
    assert (bands.start_ns, bands.end_ns) == (10 * S, 30 * S)
    assert bands.ranks[0].states["activity"].to_list() == ["compute", "wait", "transfer"]


def test_a_rank_without_anything_is_named_and_the_other_kept(run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()
    collected = pipeline.collect(CollectRequest(tmp_path / "other", 3, empty, None, None, "cpu"))
    assert collected.arrivals is None
    assert collected.missing == ["rank 3: nothing was recorded"]
    for file in rank_folder(run, 1).iterdir():
        file.unlink()
    rank_folder(run, 1).rmdir()
    outcome = audits.audit(run.parent.parent)
    assert outcome.audit.missing == ["rank 1: no record"]
    # whom rank 0 waited for cannot be known: its time in the collective stays unresolved
    states = outcome.audit.variants["join"].ranks[0].states
    assert states["working/compute"].s == pytest.approx(10.0)
    assert states["working/unresolved"].s == pytest.approx(10.0)


def test_a_table_that_is_gone_is_named_with_its_ranks(run: Path) -> None:
    (rank_folder(run, 0) / "marks.parquet").unlink()
    (rank_folder(run, 1) / "marks.parquet").unlink()
    (rank_folder(run, 1) / "steps.parquet").unlink()
    missing = audits.audit(run.parent.parent).audit.missing
    assert "rank 0: no table of marks" in missing
    assert "rank 1: no table of steps, marks" in missing


@pytest.mark.parametrize("table", ["steps", "collectives"])
def test_a_rank_without_steps_or_calls_is_not_taken_for_one_that_did_nothing(run: Path, table: str) -> None:
    assert audits.audit(run.parent.parent).audit.variants["join"].energy_per_unit_j is not None
    (rank_folder(run, 1) / f"{table}.parquet").unlink()
    result = audits.audit(run.parent.parent).audit
    assert [r.rank for r in result.variants["join"].ranks] == [0]
    assert result.variants["join"].ranks[0].states["working/unresolved"].s == pytest.approx(10.0)
    assert result.variants["join"].energy_per_unit_j is None  # half of the joules for all of the work
    assert result.findings == []


def test_a_run_that_lost_its_manifest_is_named(run: Path) -> None:
    other = run.parent / "1"
    shutil.copytree(run, other)
    (other / "manifest.json").unlink()
    assert "join repeat 1: no manifest.json" in audits.audit(run.parent.parent).audit.missing


def test_damaged_settings_are_named_to_the_field(run: Path) -> None:
    path = run.parent.parent / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"baseline": 3}))
    with pytest.raises(RecordError, match="baseline: Input should be a valid string"):
        audits.audit(run.parent.parent)


def test_one_run_is_no_audit_and_an_audit_no_run(run: Path) -> None:
    with pytest.raises(RecordError, match="is one run"):
        audits.audit(run)
    with pytest.raises(RecordError, match="is an audit"):
        drawn_runs.bands(run.parent.parent)


def test_settings_hold_no_environment(run: Path) -> None:
    text = (run.parent.parent / "settings.json").read_text()
    assert os.environ.get("PATH", "/bin") not in text
    assert sorted(json.loads(text)) == ["baseline", "compare", "name", "profile", "started"]


def test_a_run_without_any_rank_is_said_not_a_crash(run: Path) -> None:
    for folder in (run / "ranks").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    outcome = audits.audit(run.parent.parent)
    assert outcome.audit.variants["join"].runs == 0
    assert outcome.audit.missing
    assert drawn_runs.bands(run).ranks == {}


@pytest.mark.parametrize(("cpu_s", "spins"), [(20, True), (12, False)])
def test_a_host_that_polls_for_its_gpu_is_told_from_one_that_sleeps(tmp_path: Path, cpu_s: int, spins: bool) -> None:
    """A step from 10 to 30 s with captured kernels; from 20 to 28 s the main thread waits for the device."""
    gpu, ahead_s = "GPU-1", 1_000
    segments = tmp_path / "spool"
    segments.mkdir()
    main, us = {"ph": "X", "pid": 7, "tid": 7}, S // 1_000
    events = [
        {"ph": "X", "pid": 0, "tid": 1, "cat": "kernel", "name": "gemm", "ts": 12e6, "dur": 16e6,
         "args": {"device": 0, "stream": 1, "correlation": 1}},
        main | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 11e6, "dur": us, "args": {"correlation": 1}},
        main | {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 20e6, "dur": 8e6, "args": {}},
    ]  # fmt: skip
    head = {"schemaVersion": 1, "baseTimeNanoseconds": ahead_s * S, "traceEvents": events}
    (segments / "kernels.json").write_text(json.dumps(head))
    trace = {"file": "kernels.json", "step": 1, "start_ns": 10 * S, "wall_ahead_ns": ahead_s * S}
    lines = [
        *(row("stamp", t_ns=t * S, cpu_ns=c * S, delay_ns=0) for t, c in ((0, 0), (10, 10), (30, 10 + cpu_s))),
        row("step", step=0, start_ns=0, end_ns=10 * S, kind="warm-up"),
        row("step", step=1, start_ns=10 * S, end_ns=30 * S, kind="kernels"),
        row("mark", name="kernel_trace", t_ns=30 * S, detail=json.dumps(trace)),
        row("mark", name="exit", t_ns=31 * S, detail=None),
    ]  # fmt: skip
    (segments / "000000.jsonl").write_text("\n".join(lines) + "\n")
    run = tmp_path / "audit" / "one" / "0"
    pipeline.collect(CollectRequest(run, 0, segments, None, None, gpu))
    meter = MeterUsed("modelled:h200", "modelled", "modelled: H200", gpu)
    ranks = [RankRun(0, 0, "node", device=gpu, exit_code=0, meter=meter)]
    write_manifest(run, Manifest("audit", "one", 0, "2026-01-01T00:00:00Z", 1, ["x"], 0, ranks, {"node": Clock()}, {}))
    audits.Settings(name="audit", started="", baseline="one", compare=Compare(), profile=None).write(tmp_path / "audit")
    found = [f for f in audits.audit(tmp_path / "audit").audit.findings if f.kind == "host-spin"]
    assert bool(found) is spins
    if spins:  # 8 s of waiting, all of it on the core
        assert found[0].seconds == pytest.approx(8)
        assert found[0].evidence["waiting_s"] == pytest.approx(8)
        assert found[0].where.steps == (1, 1)


@pytest.mark.parametrize(("waiting_gb_s", "verdict"), [(0.0, "agrees"), (250.0, "contradicts")])
def test_what_performance_monitors_saw_is_kept_and_said_beside_the_states(
    tmp_path: Path, waiting_gb_s: float, verdict: str
) -> None:
    """The same drawing on two GPUs: looks every 100 ms, of which only the first device has any."""
    run = tmp_path / "audit" / "join" / "0"
    starts = [10 * S + 30_000_000 + n * S // 10 for n in range(199)]
    gb_s = [0.0 if t < 19.9 * S else waiting_gb_s if t < 24.9 * S else 250.0 for t in starts]
    looks = pl.DataFrame(
        {
            "device": "GPU-0", "start_ns": starts, "end_ns": [t + S // 10 for t in starts], "sm": 1.0, "tensor": 0.0,
            "dram": None, "nvlink_bytes_s": [1e9 * rate for rate in gb_s],
        },
        schema=MONITORS.schema,
    )  # fmt: skip
    ranks = []
    for rank, (issue_s, seen) in enumerate(((20, looks), (25, None))):
        segments, gpu = spool(tmp_path / f"spool{rank}", issue_s), f"GPU-{rank}"
        pipeline.collect(CollectRequest(run, rank, segments, None, None, gpu, seen))
        why = "none: this GPU has no performance monitors" if seen is None else "seen beside the power"
        meter = MeterUsed("nvml", "measured", "NVML", gpu, monitors=why)
        ranks.append(RankRun(rank, rank, "node", device=gpu, exit_code=0, meter=meter))
    clocks = {"node": Clock()}
    write_manifest(run, Manifest("audit", "join", 0, "2026-01-01T00:00:00Z", 2, ["x"], 0, ranks, clocks, {}))
    profile = load_profile("h200")
    audits.Settings(name="audit", started="", baseline="join", compare=Compare(), profile=profile).write(run.parents[1])
    assert read_monitors(rank_folder(run, 0)).equals(looks)
    outcome = audits.audit(tmp_path / "audit")
    first, second = outcome.audit.variants["join"].ranks
    assert {state: share.s for state, share in first.states.items()} == {  # whatever the monitors say
        "working/unresolved": 10.0, "working/wait": 5.0, "working/transfer": 5.0,
    }  # fmt: skip
    assert {state: said.verdict for state, said in first.monitors.items()} == {
        "working/wait": verdict, "working/transfer": "agrees",
    }  # fmt: skip
    assert second.monitors["working/transfer"].verdict == "not available"
    assert "no performance monitors" in second.monitors["working/transfer"].reason
    with_ = {"agrees": "agree with", "contradicts": "contradict"}[verdict]
    assert any(f"performance monitors {with_} working/wait on rank 0: NVLink" in n for n in outcome.audit.notes)
    assert any("tell nothing of working/transfer on rank 1" in n for n in outcome.audit.notes)
