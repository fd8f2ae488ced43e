"""Traces of several ranks as one record, audited."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from synthetic_traces import late_us, write_rank, write_ranks

import magneton_dist
from magneton_dist import traces
from magneton_dist.commands import run as command
from magneton_dist.errors import InputError, RecordError
from magneton_dist.importers import bytestream, record
from magneton_dist.importers.rank_files import host_of, rank_of, rank_pattern, trace_files
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import StateShare
from magneton_dist.records.store import RunRecord
from magneton_dist.records.validation import validate

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
T0 = 1_700_000_000_000_000  # us


@pytest.fixture
def job(write: Any, make: Any) -> Any:
    """Three ranks; in step k, rank r reaches the all-reduce at 100 + 50 r us, and it ends at 300 us on all."""

    def written(ranks: int = 3, first_steps: tuple[int, ...] = (0, 0, 0), device: str = "NVIDIA H200") -> Path:
        for r in range(ranks):
            events = []
            for k in range(first_steps[r], 3):
                at = T0 + 1000 * k
                start = at + 100 + 50 * r
                events += [
                    make.step(k, at, 1000), make.launch(10 * k + 1, at + 5),
                    make.kernel("gemm", at + 50, 20, 10 * k + 1),
                    make.launch(10 * k + 2, at + 60),
                    {**make.kernel(NCCL, start, at + 300 - start, 10 * k + 2), "pid": r},
                ]  # fmt: skip
            for event in events:
                if event["cat"] == "kernel":
                    event["args"]["device"] = r
            path = write(
                events, f"job/rank-{r}.json.gz", distributedInfo={"rank": r, "world_size": ranks},
                deviceProperties=[{"id": d, "name": device} for d in range(ranks)],
            )  # fmt: skip
        return path.parent

    return written


def test_waits_states_and_joules_of_three_ranks(job: Any, tmp_path: Path) -> None:
    outcome = traces.audit_traces([job()], tmp_path / "runs")
    result = outcome.audit.variants["trace"]
    assert (outcome.audit.missing, outcome.audit.energy_kind) == ([], "modelled")
    assert "H200" in outcome.audit.energy_source
    watts = load_profile("h200").nominal()
    for r, rank in enumerate(result.ranks):
        us = {key: round(share.s * 1e6, 3) for key, share in rank.states.items()}
        waits = {"working/wait": 3.0 * (100 - 50 * r)} if r < 2 else {}
        idle = 3000 - 3 * (20 + 200 - 50 * r)
        assert us == waits | {"working/compute": 60, "working/transfer": 300, "working/idle": idle}
        keys = {"working/idle": "context_idle"}
        joules = sum(s * 1e-6 * watts[keys.get(state, state.partition("/")[2])] for state, s in us.items())
        assert rank.energy_j == pytest.approx(joules)
    run = RunRecord(outcome.folder / "trace" / "0")
    assert validate(run) == []


@pytest.mark.parametrize("rank", [1_700_000_000, 1 << 40])
def test_a_number_that_is_no_rank_is_named(job: Any, tmp_path: Path, rank: int) -> None:
    folder = job()
    path = folder / "rank-2.json.gz"
    text = gzip.decompress(path.read_bytes()).replace(b'{"rank": 2,', b'{"rank": %d,' % rank)
    path.write_bytes(gzip.compress(text))
    audit = traces.audit_traces([folder], tmp_path / "runs").audit
    assert audit.missing == [f"{path}: {rank} is no number of a rank (give --rank-regex)", "rank 2: no record"]
    assert [r.rank for r in audit.variants["trace"].ranks] == [0, 1]


@pytest.mark.parametrize("world", [-5, 10**18])
def test_worlds_and_ranks_that_cannot_be_are_not_used(job: Any, tmp_path: Path, world: int) -> None:
    folder = job()
    for r in range(3):
        path = folder / f"rank-{r}.json.gz"
        text = gzip.decompress(path.read_bytes())
        said = b'{"rank": %d, "world_size": 3}' % r
        assert said in text
        path.write_bytes(gzip.compress(text.replace(said, b'{"rank": -1, "world_size": %d}' % world)))
    audit = traces.audit_traces([folder], tmp_path / "runs").audit
    assert [r.rank for r in audit.variants["trace"].ranks] == [0, 1, 2]  # by the files' names
    assert audit.missing == []
    assert f"trace: ranks 0–2: trace: says it is of {world} ranks: that number is not used" in audit.notes


def test_ranks_are_aligned_by_their_steps(job: Any, tmp_path: Path) -> None:
    # rank 1's profiler began a step later: its n-th all-reduce is the others' n+1-th
    outcome = traces.audit_traces([job(first_steps=(0, 1, 0))], tmp_path / "runs")
    run = RunRecord(outcome.folder / "trace" / "0")
    assert [tables.steps["step"].to_list() for tables in run.ranks.values()] == [[1, 2]] * 3
    assert [tables.collectives["call_id"].to_list() for tables in run.ranks.values()] == [[0, 1]] * 3
    waits = [rank.states["working/wait"].s * 1e6 for rank in outcome.audit.variants["trace"].ranks[:2]]
    assert waits == pytest.approx([200, 100])
    assert any("1 step(s) that other ranks' traces lack are left out" in note for note in outcome.audit.notes)


def test_a_broken_rank_is_named_and_the_others_are_kept(job: Any, tmp_path: Path) -> None:
    folder = job()
    broken = folder / "rank-1.json.gz"
    broken.write_bytes(broken.read_bytes()[:200])
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    assert any(str(broken) in line and "cut off at byte 200" in line for line in outcome.audit.missing)
    assert "rank 1: no record" in outcome.audit.missing
    assert [rank.rank for rank in outcome.audit.variants["trace"].ranks] == [0, 2]
    assert any("no wait for 6 of 6 calls: only 2 of 3 ranks recorded the call" in n for n in outcome.audit.notes)


def _bomb() -> bytes:
    return gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20))


BROKEN = {
    "empty": (b"", "is empty"),
    "cut-json": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "na', "cut off at byte 49"),
    "cut-gzip": (gzip.compress(b'{"traceEvents": [' + b'{"ph": "M"}, ' * 999)[:40], "the gzip is cut off at byte 40"),
    "bomb": (_bomb(), "unpacks to more than 400 times its size"),
    "execution-trace": (b'{"schema": "1.0.4", "pid": 1, "nodes": []}', "is a PyTorch execution trace"),
    "pickle": (b"\x80\x04}q\x00.", "is a pickle"),
    "nothing": (b'{"traceEvents": []}', "holds no event of a host or a device"),
    "no-rank": (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}', "has no rank"),
}  # fmt: skip


def test_every_broken_file_is_named_and_every_sound_rank_is_kept(job: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(bytestream, "BOMB_BYTES", 4 << 20)
    folder = job()
    sound = traces.audit_traces([folder], tmp_path / "sound").audit.variants["trace"].ranks
    for name, (content, _) in BROKEN.items():
        (folder / f"{name}.json").write_bytes(content)
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    for name, (_, reason) in BROKEN.items():
        (line,) = [line for line in outcome.audit.missing if f"{name}.json" in line]
        assert reason in line
        assert "\n" not in line
    # all ranks are there, with the waits they have without those files
    assert [rank.states for rank in outcome.audit.variants["trace"].ranks] == [rank.states for rank in sound]


def test_a_rank_twice_and_a_file_of_another_run(job: Any, write: Any, make: Any, tmp_path: Path) -> None:
    folder = job()
    (folder / "zz-copy.json.gz").write_bytes((folder / "rank-0.json.gz").read_bytes())
    write([make.kernel("k", T0 + 3_600_000_000, 5)], "job/rank-7.json")
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    assert any("zz-copy" in line and "is of rank 0" in line for line in outcome.audit.missing)
    assert any("rank-7" in line and "1:00:00 (h:min:s) apart" in line for line in outcome.audit.missing)


def test_the_run_that_most_files_are_of_is_audited(job: Any, write: Any, make: Any, tmp_path: Path) -> None:
    folder = job()
    for old in ("rank-0.json.gz", "a-rank-1.json.gz"):  # what an earlier run has left, also where it comes first
        write([make.kernel("k", T0 - 86_400_000_000, 5)], f"job/{old}")
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    assert [rank.rank for rank in outcome.audit.variants["trace"].ranks] == [1, 2]
    old_files = [line for line in outcome.audit.missing if "not the same run" in line]
    assert len(old_files) == 2
    assert all("1 day, 0:00:00 (h:min:s) apart" in line and "rank-1.json.gz" in line for line in old_files)


def test_ranks_that_left_no_trace_are_one_line(job: Any, tmp_path: Path) -> None:
    folder = job()
    for path in folder.iterdir():
        text = gzip.decompress(path.read_bytes()).replace(b'"world_size": 3', b'"world_size": 8')
        path.write_bytes(gzip.compress(text))
    (folder / "rank-1.json.gz").unlink()
    assert traces.audit_traces([folder], tmp_path / "runs").audit.missing == ["ranks 1, 3–7 of 8: no record"]


def test_no_trace_at_all(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.json").write_text('{"schema": "1", "nodes": []}')
    with pytest.raises(RecordError, match=r"no trace could be read: .*a\.json: is a PyTorch execution trace"):
        traces.audit_traces([tmp_path / "t"], tmp_path / "runs")
    assert not any((tmp_path / "runs").iterdir())


def test_devices_without_published_watts_are_unmeasured(job: Any, tmp_path: Path) -> None:
    folder = job(device="NVIDIA A100 80GB PCIe")
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    assert outcome.audit.energy_kind == "unmeasured"
    assert [rank.energy_j for rank in outcome.audit.variants["trace"].ranks] == [None] * 3
    modelled = traces.audit_traces([folder], tmp_path / "runs", profile=load_profile("h200"))
    assert modelled.audit.energy_kind == "modelled"
    assert "H200" in modelled.audit.energy_source
    assert "A100" in modelled.audit.energy_source
    assert outcome.folder != modelled.folder


def test_a_rank_is_modelled_as_the_device_that_it_ran_on(job: Any, tmp_path: Path) -> None:
    folder = job(device="NVIDIA A100-SXM4-80GB")
    audit = traces.audit_traces([folder], tmp_path / "runs").audit
    assert audit.energy_kind == "modelled"
    assert "NVIDIA A100 SXM4 by state, profile a100, for NVIDIA A100-SXM4-80GB." in audit.energy_source
    watts = {"wait": 91, "transfer": 121, "compute": 304, "overlap": 304, "idle": 80}  # W, of profiles/a100.yaml
    for rank in audit.variants["trace"].ranks:
        for state, share in rank.states.items():
            assert share.j == pytest.approx(share.s * watts[state.partition("/")[2]])


def test_what_a_wait_could_save_is_above_the_same_device_idling(tmp_path: Path) -> None:
    shape = {"steps": 4, "calls": 4, "kernels": 2, "slow": 3}
    folder = write_ranks(tmp_path / "many", 24, device="NVIDIA A100-SXM4-80GB", **shape)
    audit = traces.audit_traces([folder], tmp_path / "runs").audit
    (straggler,) = [f for f in audit.findings if f.kind == "straggler-wait"]
    assert straggler.joules is not None
    assert straggler.joules.mean == pytest.approx(straggler.seconds * (91 - 80))  # W of profiles/a100.yaml


def test_where_devices_differ_each_has_its_own_watts_and_findings_say_whose_they_take(tmp_path: Path) -> None:
    for rank, device in enumerate(["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"]):
        write_rank(tmp_path / "job" / f"rank-{rank}.json.gz", rank, 3, device, steps=2, calls=2, kernels=2)
    audit = traces.audit_traces([tmp_path / "job"], tmp_path / "runs").audit
    computing = [rank.states["working/compute"] for rank in audit.variants["trace"].ranks]
    watts = [None if share.j is None else share.j / share.s for share in computing]
    assert watts == pytest.approx([304, 304, 220])  # W of profiles/a100.yaml and v100.yaml
    assert "ranks were modelled as v100; findings and ranges take the watts of a100 for them" in audit.notes


def test_processes_read_what_one_process_reads(job: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder = job()
    one = traces.audit_traces([folder], tmp_path / "one")
    monkeypatch.setattr(record, "WORTH_PROCESSES", 0)
    many = traces.audit_traces([folder], tmp_path / "many")
    for rank in range(3):
        a, b = (RunRecord(o.folder / "trace" / "0").ranks[rank] for o in (one, many))
        for name in ("activities", "collectives", "steps", "ops", "stacks"):
            assert a.table(name).equals(b.table(name)), name


def test_a_script_without_a_guard_is_not_run_again_by_the_processes(job: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import magneton_dist\nfrom magneton_dist.importers import record\nrecord.WORTH_PROCESSES = 0\n"
        f"print(len(magneton_dist.audit({str(job())!r}).variants['trace'].ranks), 'ranks')\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("3 ranks\n", "")


def test_the_command_writes_a_record_it_reads_again(job: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = job()
    assert command(["audit", str(folder), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    (made,) = (tmp_path / "runs").iterdir()
    assert (made / "report.html").is_file()
    assert command(["audit", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variants"] == first["variants"]
    glob = str(folder / "rank-*.json.gz")
    assert command(["audit", glob, "--rank-regex", r"rank-(\d)", "--out", "o", "--quiet"]) == 0
    assert command(["audit", str(folder / "gone")]) == 2
    assert "no such record, trace, folder or glob" in capsys.readouterr().err


@pytest.mark.parametrize("during", ["magneton_dist.audits.audit", "magneton_dist.commands.present.write"])
def test_ctrl_c_after_reading_names_what_is_kept(
    job: Any, tmp_path: Path, monkeypatch: Any, capsys: Any, during: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(during, stopped)
        assert command(["audit", str(job())]) == 130
    (made,) = (tmp_path / "runs").iterdir()
    kept = made.relative_to(tmp_path)
    assert capsys.readouterr().err == (
        f"The record of the traces is kept: magneton-dist audit {kept}\n"
        "magneton-dist: interrupted\n"
    )
    assert command(["audit", str(kept), "--quiet"]) == 0


@pytest.mark.parametrize("during", ["magneton_dist.traces.import_traces", "magneton_dist.audits.Settings.write"])
def test_ctrl_c_before_that_leaves_nothing(
    job: Any, tmp_path: Path, monkeypatch: Any, capsys: Any, during: str
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(during, stopped)
    assert command(["audit", str(job()), "--out", str(tmp_path / "runs")]) == 130
    assert list((tmp_path / "runs").iterdir()) == []
    assert capsys.readouterr().err == "magneton-dist: interrupted\n"


def test_a_rank_without_any_collective_is_named(job: Any, tmp_path: Path) -> None:
    folder = job()
    path = folder / "rank-1.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(NCCL.encode(), b"renamed")))
    notes = traces.audit_traces([folder], tmp_path / "runs").audit.notes
    assert "trace: rank 1: no collective(s) where other ranks have 3: is its trace whole?" in notes
    assert any(note.endswith("no wait for 6 of 6 calls: only 2 of 3 ranks recorded the call") for note in notes)


def test_places_that_cannot_be_written_are_named(job: Any, tmp_path: Path, capsys: Any) -> None:
    folder, file = job(), tmp_path / "file"
    file.touch()
    assert command(["audit", str(folder), "--out", str(file)]) == 2
    assert "cannot be made: Not a directory (give another folder with --out)" in capsys.readouterr().err
    assert command(["audit", str(folder), "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    (record_folder,) = (tmp_path / "runs").iterdir()
    export = ["export", str(record_folder / "trace" / "0"), "--format", "states", "--force", "--output"]
    for place, why in ((tmp_path / "none" / "x.csv", "No such file or directory"), (folder, "Is a directory")):
        assert command([*export, str(place)]) == 2
        assert f"{place}: cannot be written: {why}" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_full_disk_is_named_and_nothing_is_left(job: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise pl.exceptions.ComputeError("No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    assert command(["audit", str(job()), "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "the record cannot be written: " in said
    assert "No space left on device" in said
    assert list((tmp_path / "runs").iterdir()) == []


def test_many_ranks_wait_for_the_slow_one(tmp_path: Path) -> None:
    ranks, shape = 24, {"steps": 4, "calls": 4, "kernels": 2, "slow": 3}
    outcome = traces.audit_traces([write_ranks(tmp_path / "many", ranks, **shape)], tmp_path / "runs")
    calls = [(step, call) for step in range(4) for call in range(4)]
    late = [[late_us(rank, step, call, ranks, 3) for step, call in calls] for rank in range(ranks)]
    last = [max(of_call) for of_call in zip(*late, strict=True)]
    for rank, result in enumerate(outcome.audit.variants["trace"].ranks):
        waited = sum(end - own for end, own in zip(last, late[rank], strict=True))
        assert result.states.get("working/wait", StateShare(0.0)).s == pytest.approx(waited / 1e6, abs=1e-9)
    (straggler,) = [f for f in outcome.audit.findings if f.kind == "straggler-wait"]
    blamed = sum(own == end for own, end in zip(late[3], last, strict=True))
    assert (straggler.ranks, straggler.evidence["calls"]) == ([3], blamed)
    assert [c.what for c in outcome.audit.counterfactuals][:2] == ["all ranks alike", "rank 3"]
    # whatever is as large as another comes in one order
    for _ in range(3):
        assert magneton_dist.audit(outcome.folder) == outcome.audit


def test_python_audits_traces_too(job: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = job()
    told = magneton_dist.audit(folder)
    assert not (tmp_path / "runs").exists()  # nothing was asked to be kept
    waits = [rank.states["working/wait"].s * 1e6 for rank in told.variants["trace"].ranks[:2]]
    assert waits == pytest.approx([300, 150])
    # each all-reduce is reached at 100, 150 and 200 us: were the last one in time, 50 us less three times
    saved = {c.what: round(c.saved_s * 1e6) for c in told.counterfactuals}
    assert saved == {"all ranks alike": 150, "rank 2": 150}
    kept = magneton_dist.audit(sorted(folder.iterdir()), out=tmp_path / "kept", profile="h200")
    (made,) = (tmp_path / "kept").iterdir()
    assert magneton_dist.audit(made).variants == kept.variants
    with pytest.raises(RecordError, match="no such record, trace, folder or glob"):
        magneton_dist.audit(tmp_path / "gone")


def test_a_run_of_traces_is_exported(job: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    run = traces.audit_traces([job()], tmp_path / "runs").folder / "trace" / "0"
    for to in ("perfetto", "waits", "states", "prometheus"):
        assert command(["export", str(run), "--format", to]) == 0
    waits = pl.read_csv(run / "waits.csv").group_by("rank").agg(pl.col("wait_s").sum().round(9))
    assert waits.sort("rank")["wait_s"].to_list() == [3e-4, 1.5e-4, 0]
    assert pl.read_csv(run / "states.csv")["rank"].n_unique() == 3
    assert 'culprit="2"} 0.0003\n' in (run / "metrics.prom").read_text()
    events = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))["traceEvents"]
    arrows = [e for e in events if e["ph"] == "s"]
    assert {e["pid"] for e in arrows} == {3}  # they lead away from rank 2
    assert len(arrows) == 6
    assert command(["export", str(run), "--format", "waits"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_ranks_by_pattern_content_and_name() -> None:
    path = Path("a/worker7_rank12.json")
    assert rank_of(path, 3, rank_pattern(r"worker(\d+)")) == 7
    assert rank_of(path, 3, rank_pattern(r"host(\d+)")) is None
    assert rank_of(path, 3, None) == 3
    assert rank_of(path, None, None) == 12
    assert rank_of(Path("a.json"), None, None) is None
    for wrong in ("(", "rank"):
        with pytest.raises(InputError):
            rank_pattern(wrong)


def test_hosts_by_file_name_and_device() -> None:
    assert host_of(Path("node3_4711.1700000000.pt.trace.json.gz"), 9, "cuda:1") == "node3"
    assert {host_of(Path("x"), rank, f"cuda:{rank % 8}") for rank in range(16)} == {"host of rank 0", "host of rank 8"}
    assert host_of(Path("x"), 3, "cuda:0") == "host of rank 3"
    # what the trace says goes first, if it can tell hosts apart
    assert host_of(Path("node3_4711.1700000000.pt.trace.json.gz"), 9, "cuda:1", "node7") == "node7"
    assert host_of(Path("x"), 3, "cuda:0", "localhost.localdomain") == "host of rank 3"


@pytest.fixture
def on_cpus(write: Any, make: Any) -> Any:
    """Two ranks without a device: 20 calls of gloo on 20 steps of 1 ms, to which rank 1 comes 400 us later."""

    def written(**info: Any) -> Path:
        for r in range(2):
            events = []
            for k in range(20):
                at = T0 + 1000 * k
                start, end = at + 300 + 400 * r, at + 800 + 60 * r  # ends differ: threads wake up late
                events += [
                    make.step(k, at, 1000), make.host("c10d::allreduce_", start - 10, 5),
                    make.host("aten::addmm", at + 100, 100), make.host("aten::mm", at + 110, 20),
                    make.host("gloo:all_reduce", start, end - start, "user_annotation", tid=2),
                    make.host("aten::add_", at + 880, 20),
                ]  # fmt: skip
            path = write(
                events, f"cpu/rank-{r}.json", distributedInfo={"rank": r, "world_size": 2, **info}, host_name="one",
            )  # fmt: skip
        return path.parent

    return written


def test_ranks_of_a_trace_without_a_device(on_cpus: Any, tmp_path: Path) -> None:
    job = on_cpus(pg_count=1, pg_config=[{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}])
    outcome = traces.audit_traces([job], tmp_path / "runs")
    states = [rank.states for rank in outcome.audit.variants["trace"].ranks]
    us = [{key.partition("/")[2]: round(share.s * 1e6) for key, share in of_rank.items()} for of_rank in states]
    # by hand: a step computes for 100 + 20 us, waits for 400 us or not at all, and transfers from 700 to 800 or 860 us
    assert us[0] == {"compute": 20 * 120, "wait": 20 * 400, "transfer": 20 * 100, "idle": 20 * 380}
    assert us[1] == {"compute": 20 * 120, "transfer": 20 * 160, "idle": 20 * 720}
    (finding,) = [f for f in outcome.audit.findings if f.kind == "straggler-wait"]
    assert (finding.ranks, finding.seconds) == ([1], pytest.approx(20 * 400e-6))
    assert any("its operators on the host are taken for what it computed" in note for note in outcome.audit.notes)
    assert validate(RunRecord(outcome.folder / "trace" / "0")) == []
    run = str(outcome.folder / "trace" / "0")
    for kind in ("perfetto", "kernels", "waits", "states", "prometheus"):
        assert command(["export", run, "--format", kind, "-o", str(tmp_path / kind)]) == 0


def test_calls_are_of_the_only_group_just_where_there_is_only_one(on_cpus: Any, tmp_path: Path) -> None:
    groups = [{"pg_name": name, "pg_size": 2, "ranks": [0, 1]} for name in "01"]
    outcome = traces.audit_traces([on_cpus(pg_config=groups)], tmp_path / "runs")
    assert any("its group is not recorded" in note for note in outcome.audit.notes)
    assert "working/wait" not in outcome.audit.variants["trace"].ranks[0].states


def test_folders_do_not_bring_those_within(tmp_path: Path) -> None:
    (tmp_path / "et").mkdir()
    for name in ("rank-1.json", "rank-0.json.gz", "notes.txt", "et/rank-0.json"):
        (tmp_path / name).write_text("x")
    assert [p.name for p in trace_files([tmp_path])] == ["rank-0.json.gz", "rank-1.json"]
    both = trace_files([tmp_path / "rank-1.json", str(tmp_path / "rank-*")])
    assert [p.name for p in both] == ["rank-1.json", "rank-0.json.gz"]


def test_what_is_no_file_is_named_and_not_waited_for(job: Any, tmp_path: Path) -> None:
    folder = job()
    (folder / "rank-5.json").symlink_to("nowhere.json")
    (folder / "rank-6.json").symlink_to("rank-6.json")
    os.mkfifo(folder / "rank-7.json")
    outcome = traces.audit_traces([folder], tmp_path / "runs")
    assert [rank.rank for rank in outcome.audit.variants["trace"].ranks] == [0, 1, 2]
    for rank, why in ((5, "No such file"), (6, "Too many levels of symbolic links"), (7, "is no file")):
        assert any(f"rank-{rank}.json: " in line and why in line for line in outcome.audit.missing)


def test_a_folder_that_may_not_be_read_is_named(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    def refused(*_: Any, **__: Any) -> Any:  # root may read everything
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", refused)
        with pytest.raises(RecordError, match="cannot be read: Permission denied"):
            magneton_dist.load(tmp_path)
    for method in ("is_dir", "iterdir"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refused)
            assert command(["audit", str(tmp_path), "--out", str(tmp_path / "runs")]) == 2
        assert f"{tmp_path}: cannot be read: Permission denied" in capsys.readouterr().err


def test_a_pattern_that_finds_no_rank_is_named(job: Any, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"where --rank-regex host\(\\d\+\) wants the rank"):
        traces.audit_traces([job()], tmp_path / "runs", rank_regex=r"host(\d+)")


def test_calls_whose_group_is_unknown_need_ends_that_agree(write: Any, make: Any, tmp_path: Path) -> None:
    for r in range(2):
        calls = [(T0 + 1000 * n + 100 * r, 500 + (200 * r if n == 2 else -100 * r)) for n in range(4)]
        events = [{**make.kernel(NCCL, t, dur), "pid": r} for t, dur in calls]
        for event in events:
            event["args"]["device"] = r
        write(events, f"two/rank-{r}.json", distributedInfo={"rank": r, "world_size": 2})
    outcome = traces.audit_traces([tmp_path / "two"], tmp_path / "runs")
    assert any("no wait for 2 of 8 calls: its group is not recorded" in note for note in outcome.audit.notes)
    assert outcome.audit.variants["trace"].ranks[0].states["working/wait"].s == pytest.approx(300e-6)
