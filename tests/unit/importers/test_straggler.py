"""Two real jobs' timelines, against the slowdowns and culprits that their authors found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist import audits
from magneton_dist.errors import RecordError
from magneton_dist.importers.straggler import is_timeline, read_timeline
from magneton_dist.meters import load_profile
from magneton_dist.records.store import RunRecord
from magneton_dist.records.validation import validate
from magneton_dist.timeline.replay import Replay
from magneton_dist.traces import audit_traces


@pytest.fixture(scope="module", params=["AR", "SE"])
def job(request: Any, traces: Path) -> tuple[str, dict[str, Any], Replay, int]:
    folder = traces / "bytedance-straggler"
    answer = json.loads((folder / f"result-{request.param}.json").read_text())
    operations, dropped = read_timeline(folder / f"timeline-{request.param}.json.gz")
    # the authors leave out two of SE's steps
    kept = operations.filter(pl.col("step").is_in([int(step) for step in answer["step_t_nodelay"]]))
    return request.param, answer, Replay(kept), dropped


def test_slowdown_is_the_authors(job: Any) -> None:
    name, answer, replay, dropped = job
    assert replay.slowdown() == pytest.approx({"AR": 1.973, "SE": 1.537}[name], rel=0.02)
    assert replay.slowdown() == pytest.approx(answer["blocking_slowdown"], rel=0.005)
    assert dropped == {"AR": 0, "SE": 8}[name]


def test_every_step_takes_what_the_authors_simulate(job: Any) -> None:
    _, answer, replay, _ = job
    steps = replay.operations["step"].unique().sort().to_list()
    theirs = [answer["step_t_nodelay"][str(step)] for step in steps]
    assert replay.step_seconds(replay.durations_s).tolist() == pytest.approx(theirs, rel=0.01)
    assert replay.step_seconds(replay.ideal_s, [0])[0] == pytest.approx(answer["step_t_noblk"][str(steps[0])], rel=0.01)


def test_culprits_are_the_authors(job: Any) -> None:
    name, answer, replay, _ = job
    some = range(0, replay.steps, 5)
    stages = {s: replay.slowdown(pl.col("stage") == s, some) for s in replay.operations["stage"].unique()}
    theirs = answer["blocking_decompose_by_stage"]
    assert max(stages, key=stages.__getitem__) == int(max(theirs, key=theirs.__getitem__))
    assert stages == pytest.approx({int(s): v for s, v in theirs.items()}, rel=0.04)
    backward, forward = (replay.slowdown(pl.col("op") == f"{way}-compute", some) for way in ("backward", "forward"))
    kinds = answer["blocking_decompose_by_optype"]
    assert (backward, forward) == pytest.approx((kinds["backward-compute"], kinds["forward-compute"]), rel=0.04)
    if name == "AR":
        first, second = (replay.slowdown(pl.col("dp") == dp, some) for dp in (0, 1))
        assert (first, second) == pytest.approx((1.973, 1.011), rel=0.02)


def test_what_last_stage_and_slowest_workers_explain_is_what_the_authors_say(job: Any, traces: Path) -> None:
    name, _, replay, _ = job
    folder = traces / "bytedance-straggler"
    stage, workers = (json.loads((folder / f"{which}-{name}.json").read_text()) for which in ("ms", "mw"))
    # M_S and M_W: shares of the excess, so a hundredth of it
    assert replay.explained(replay.last_stage()) == pytest.approx(stage["Ms"], abs=0.01)
    slowest = replay.of_workers(replay.slowest_workers(steps=range(0, replay.steps, 2)))
    assert replay.explained(slowest) == pytest.approx(workers["Mw"], abs=0.01)
    alone = (replay.slowdown(slowest) - 1) / (replay.slowdown() - 1)
    assert alone == pytest.approx(workers["add"], abs=0.01)


def test_which_files_are_timelines(traces: Path, tmp_path: Path) -> None:
    assert is_timeline(traces / "bytedance-straggler" / "timeline-AR.json.gz")
    assert not is_timeline(traces / "param-dlrm-8xV100" / "rank-0.json.gz")
    broken = tmp_path / "t.json"
    broken.write_text('[{"ph": "X", "pid": 0')
    with pytest.raises(RecordError, match=r"t\.json: is no timeline of operations"):
        read_timeline(broken)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two stages, two data-parallel ranks, one micro-batch; stage 1 of dp 1 computes 3 s instead of 1 s."""
    events: list[dict[str, Any]] = []

    def op(dp: int, stage: int, name: str, start: float, end: float, number: int = 0) -> None:
        args = {"step": 5, "model_chunk": 0, "mb_id": number, "seq_id": number}
        row = {"name": name, "pid": dp, "tid": 10 * stage, "ts": start * 1e6, "dur": (end - start) * 1e6, "ph": "X"}
        events.append({**row, "args": args})

    for dp in (0, 1):
        for stage in (0, 1):
            named = {"name": f"PP rank {stage}, TP rank 0, compute"}
            thread = {"name": "thread_name", "ph": "M", "pid": dp, "tid": 10 * stage, "args": named}
            events.append(thread)
        done = 5 if dp else 3
        op(dp, 0, "forward-compute", 0, 1)
        op(dp, 0, "forward-send", 1, 2)
        op(dp, 1, "forward-recv", 0, 2)
        op(dp, 1, "backward-compute", 2, done)
        op(dp, 1, "grads-reduce-scatter", done, 6)
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([e for e in events if e["ph"] == "X"] + [e for e in events if e["ph"] == "M"]))
    return path


def test_a_timeline_is_audited_with_waits_and_slowdown(small: Path, tmp_path: Path) -> None:
    outcome = audit_traces([small], tmp_path / "runs")
    states = [rank.states for rank in outcome.audit.variants["trace"].ranks]  # stage 0 dp 0, dp 1, stage 1 dp 0, dp 1
    seconds = [{k.partition("/")[2]: s.s for k, s in of_rank.items()} for of_rank in states]
    assert [s.get("compute") for s in seconds] == [1, 1, 1, 3]
    # both receivers wait 1 s for their sender; dp 0 waits 2 s more for dp 1
    assert [s.get("wait", 0) for s in seconds] == [0, 0, 3, 1]
    # 6 s, against 1 + 1 + 2 + 1 s were both backward passes as long as their mean
    assert "steps take 1.200 times what they would were no worker slower than the mean" in outcome.audit.notes
    assert any(note.startswith("slow data-parallel rank 1 alone") for note in outcome.audit.notes)
    # stage 1 computes the backward passes; of dp 1 alone too, for whom dp 0 waits
    assert "the last pipeline stage explains 100 % of what they take more" in outcome.audit.notes
    assert "the slowest 3 % of the workers explains 100 % of what they take more" in outcome.audit.notes
    # with the backward passes at their mean of 2 s, the step takes 5 s, whoever of dp 1 and stage 1 is to blame
    saved = {c.what: (c.kind, c.time_s, c.saved_s) for c in outcome.audit.counterfactuals}
    assert saved == {
        "all workers alike": ("ranks", pytest.approx(5), pytest.approx(1)),
        "data-parallel rank 1": ("replica", pytest.approx(5), pytest.approx(1)),
        "pipeline stage 1": ("stage", pytest.approx(5), pytest.approx(1)),
        "operation backward-compute": ("operation", pytest.approx(5), pytest.approx(1)),
    }
    assert validate(RunRecord(outcome.folder / "trace" / "0")) == []
    # what the record says later is what it said first
    assert audits.audit(outcome.folder).audit == outcome.audit


def test_who_makes_the_others_wait_is_named_with_modelled_joules_where_a_device_is(small: Path, tmp_path: Path) -> None:
    outcome = audit_traces([small], tmp_path / "runs")
    (finding,) = [f for f in outcome.audit.findings if f.kind == "straggler-wait"]
    # stage 1 of data-parallel rank 1; with its backward pass 2 s long, three ranks would wait 1 s less each
    assert (finding.ranks, finding.seconds, finding.joules) == ([3], pytest.approx(3), None)
    assert finding.evidence["waiting_ranks"] == [0, 1, 2]
    assert "names no device" in str(finding.evidence["joules_are"])
    assert "--profile" in " ".join(outcome.audit.notes)

    h100 = load_profile("h100")
    watts = h100.nominal()
    known = audit_traces([small], tmp_path / "h100", profile=h100).audit
    (finding,) = [f for f in known.findings if f.kind == "straggler-wait"]
    assert finding.energy_kind == "modelled"
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(3 * (watts["wait"] - watts["context_idle"]))
    # 6 s become 5 s on 4 devices; they compute 6 s and communicate 2 x 1 s (send, recv) + 2 x 1 s (reduce) in both
    saved = {c.what: c for c in known.counterfactuals}["all workers alike"]
    assert saved.energy_kind == "modelled"
    assert saved.saved_j == pytest.approx(4 * 1 * watts["context_idle"])


def test_the_culprits_of_real_jobs_are_named(traces: Path, tmp_path: Path) -> None:
    folder = traces / "bytedance-straggler"
    by_job = {}
    for job in ("AR", "SE"):
        audit = audit_traces([folder / f"timeline-{job}.json.gz"], tmp_path / job).audit
        (by_job[job],) = [f for f in audit.findings if f.kind == "straggler-wait"]
    # the authors: AR one worker, M_W 1.0 and dp 0 of stage 0; SE no worker (M_W 0.01) but the last stage (M_S 0.68)
    assert by_job["AR"].ranks == [0]
    assert "rank 0 (dp 0 of stage 0 on timeline)" in by_job["AR"].fix
    assert by_job["AR"].evidence["share_of_excess_explained"] == pytest.approx(1.0, abs=0.02)
    assert by_job["SE"].ranks == list(range(32, 64))
    assert by_job["SE"].evidence["share_of_excess_explained"] == pytest.approx(0.68, abs=0.02)
    assert by_job["SE"].cause is None
    assert "last pipeline stage" in by_job["SE"].fix


def test_what_was_dropped_is_said_again(small: Path, tmp_path: Path) -> None:
    events = json.loads(small.read_text())
    bad = {**events[0], "ts": 20e6, "dur": -5.0}
    small.write_text(json.dumps([bad, *events]))
    outcome = audit_traces([small], tmp_path / "runs")
    for audit in (outcome.audit, audits.audit(outcome.folder).audit):
        assert "trace: dropped 1 operation(s) with negative durations" in audit.notes


def test_strict_refuses_what_would_be_dropped(small: Path, tmp_path: Path) -> None:
    events = json.loads(small.read_text())
    small.write_text(json.dumps([{**events[0], "ts": 20e6, "dur": -5.0}, *events]))
    with pytest.raises(RecordError, match=r"timeline\.json: 1 operation\(s\) with negative durations"):
        audit_traces([small], tmp_path / "runs", strict=True)
    assert not any((tmp_path / "runs").iterdir())


def test_files_beside_a_timeline_are_named(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small.parent / "result.json").write_text("{}")
    monkeypatch.chdir(small.parent)
    outcome = audit_traces(["."], tmp_path / "runs")
    assert outcome.audit.missing == ["result.json: left out: timeline.json is the timeline of all workers of one job"]
    assert outcome.audit.name == small.parent.name


def test_a_data_parallel_rank_that_left_nothing_is_missing_not_another(small: Path, tmp_path: Path) -> None:
    # ranks 0 and 1 are numbered 0 and 2: worker (stage 1, rank 0) must not become (stage 0, rank 3)
    events = json.loads(small.read_text())
    small.write_text(json.dumps([{**e, "pid": 2 * e["pid"]} for e in events]))
    audit = audit_traces([small], tmp_path / "runs").audit
    assert [rank.rank for rank in audit.variants["trace"].ranks] == [0, 2, 3, 5]
    assert audit.missing == ["rank 1: no record", "rank 4: no record"]


def test_two_jobs_are_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(small.read_bytes())
    with pytest.raises(RecordError, match="is the timeline of one job"):
        audit_traces([small, tmp_path / "other.json"], tmp_path / "runs")
