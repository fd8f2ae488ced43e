"""Which steps have their kernels captured, what is left of them, and what stands in the way."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from magneton_dist.tracer import cupti
from magneton_dist.tracer.cupti import CuptiError
from magneton_dist.tracer.environment import Capture
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.kernels import KernelCapture
from magneton_dist.tracer.rows import FIELDS, OPERATOR
from magneton_dist.tracer.stacks import Stacks
from magneton_dist.tracer.stamps import Stamps
from magneton_dist.tracer.steps import Steps


class Profiler:
    """Stands in for torch's, which has no GPU here."""

    asked: ClassVar[list[list[Any]]] = []

    def __init__(self, activities: list[Any]) -> None:
        self.asked.append(activities)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        time.sleep(0.001)

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.profiler, "profile", Profiler)


def play(rows: Any, folder: Path, count: int, by: str = "kineto", **capture: Any) -> list[str]:
    """Kinds of `count` steps, every third of which has its kernels captured."""

    class Recorder:
        phase = None

        def start(self, step: int) -> None:
            pass

        def stop(self) -> None:
            pass

    steps = Steps(
        rows, Stamps(rows), Capture(**{"warmup_steps": 1, "graph_steps": 0, **capture}), start_ns=None,
        open_graph=Recorder, warmed_up=lambda: None, stop=lambda: None,
        kernels=KernelCapture(rows, str(folder), 3, 1, by),
    )  # fmt: skip
    for _ in range(count):
        steps.called(None, None)
    steps.finish()
    return [row[3] for row in rows.of("step")]


def traces(rows: Any) -> list[dict[str, Any]]:
    return [json.loads(row[2]) | {"end_ns": row[1]} for row in rows.of("mark") if row[0] == "kernel_trace"]


def test_the_first_of_every_few_steps_after_the_warm_up(rows: Any, tmp_path: Path, gpu: None) -> None:
    assert play(rows, tmp_path, 7) == [
        "warm-up", "kernels", "measured", "measured", "kernels", "measured", "measured",
    ]  # fmt: skip
    found = traces(rows)
    assert [(t["step"], t["file"]) for t in found][:2] == [(1, "kernels-000001.json"), (4, "kernels-000002.json")]
    for trace in found:
        assert trace["start_ns"] < trace["end_ns"]
        assert trace["wall_ahead_ns"] == pytest.approx(time.time_ns() - time.monotonic_ns(), abs=1e8)
        assert stat.S_IMODE((tmp_path / trace["file"]).stat().st_mode) == 0o600
    assert not rows.of("fault")


def test_traced_steps_have_them_too_and_are_not_counted(rows: Any, tmp_path: Path, gpu: None) -> None:
    assert play(rows, tmp_path, 5, graph_steps=1) == ["warm-up", "traced", "kernels", "measured", "measured"]
    assert [t["step"] for t in traces(rows)][:2] == [1, 2]


def test_without_a_gpu_it_is_said_once(rows: Any, tmp_path: Path) -> None:
    assert play(rows, tmp_path, 4) == ["warm-up", "measured", "measured", "measured"]
    assert rows.of("fault") == [["kernels", "no GPU is in use: no kernels are captured"]]
    assert not traces(rows)


def test_the_jobs_own_profiler_goes_first(rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        assert play(rows, tmp_path, 3) == ["warm-up", "measured", "measured"]
        torch.ones(2).add(1)
    assert any(event.key == "aten::add" for event in theirs.key_averages())
    (fault,) = rows.of("fault")
    assert fault[1] == "another profiler is on: no kernels are captured from here on"


# A job whose profiler begins amid a captured step; the GPU is pretended, the profilers are torch's.
TAKES_OVER = """
import sys
import torch
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.kernels import KernelCapture

real, CPU = torch.profiler.profile, torch.profiler.ProfilerActivity.CPU
torch.cuda.is_initialized = lambda: True
torch.profiler.profile = lambda activities: real(activities=[CPU])

class Spool:
    def fault(self, where, error): print("fault", error)
    def put(self, kind, *row): print(kind, row[0])

capture = KernelCapture(Spool(), sys.argv[1], 1, 1)
assert capture.start()
schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
theirs = real(activities=[CPU], schedule=schedule) if sys.argv[2] == "scheduled" else real(activities=[CPU])
with theirs:
    for step in range(4):
        torch.ones(2).add(1)
        theirs.step()
        capture.stop(step)
        started = capture.start()
print("theirs", any(event.key == "aten::add" for event in theirs.key_averages()))
theirs.export_chrome_trace(sys.argv[1] + "/theirs.json")
assert not capture.start()
"""


@pytest.mark.parametrize("kind", ["whole", "scheduled"])
def test_the_jobs_own_profiler_takes_over(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKES_OVER, str(tmp_path), kind],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert "theirs True" in said
    captured = said.count("mark kernel_trace")  # before theirs began
    assert said.count("fault another profiler began: no kernels are captured from here on") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"kernels-{n:06d}.json" for n in range(1, captured + 1)), "theirs.json",
    ]  # fmt: skip


def test_a_trace_that_cannot_be_written_ends_it(rows: Any, tmp_path: Path, gpu: None) -> None:
    assert play(rows, tmp_path / "gone", 7)[1:] == ["kernels", *["measured"] * 5]
    (fault,) = rows.of("fault")
    assert fault[1].startswith("a trace of kernels is lost: ")


class Held:
    """CUPTI, which another profiler holds."""

    def start(self, operators: bool) -> None:
        raise CuptiError("cuptiActivityEnable: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)")

    def stop(self, path: str) -> int:
        raise AssertionError

    def drop(self) -> None:
        raise AssertionError


def test_where_cupti_is_held_by_another_the_profiler_captures_and_it_is_said(
    rows: Any, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "Cupti", Held)
    assert play(rows, tmp_path, 5, by="cupti") == ["warm-up", "kernels", "measured", "measured", "kernels"]
    assert rows.of("fault") == [[
        "kernels by cupti", "cuptiActivityEnable: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39): torch.profiler "
        "captures them instead",
    ]]  # fmt: skip
    assert len(traces(rows)) == 2


def test_cupti_captures_where_it_can(
    rows: Any, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Free:
        missing: ClassVar[dict[str, str]] = {"shares of SMs": "no such device"}
        operator = None

        def start(self, operators: bool) -> None:
            pass

        def stop(self, path: str) -> int:
            return 17

    monkeypatch.setattr(cupti, "Cupti", Free)
    assert play(rows, tmp_path, 3, by="cupti") == ["warm-up", "kernels", "measured"]
    assert traces(rows)[0]["wall_ahead_ns"] == 17
    assert not traces(rows)[0]["operators"]
    assert rows.of("fault") == [["kernels", "no shares of SMs: no such device"]]


def test_where_cupti_fails_later_the_profiler_captures_from_there_on(
    rows: Any, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails:
        missing: ClassVar[dict[str, str]] = {}
        operator = None

        def start(self, operators: bool) -> None:
            pass

        def stop(self, path: str) -> int:
            raise CuptiError("cuptiActivityFlushAll: CUPTI_ERROR_UNKNOWN (999)", 999)

    monkeypatch.setattr(cupti, "Cupti", Fails)
    assert play(rows, tmp_path, 5, by="cupti") == ["warm-up", "kernels", "measured", "measured", "kernels"]
    assert len(traces(rows)) == 1  # of the second
    assert rows.of("fault") == [[
        "kernels by cupti", "a trace of kernels is lost: cuptiActivityFlushAll: CUPTI_ERROR_UNKNOWN (999): "
        "torch.profiler captures them instead",
    ]]  # fmt: skip


def test_steps_that_are_numbered_anew_leave_a_trace_each(rows: Any, tmp_path: Path, gpu: None) -> None:
    steps = Steps(
        rows, Stamps(rows), Capture(warmup_steps=0, graph_steps=0), start_ns=None, open_graph=lambda: None,
        warmed_up=lambda: None, stop=lambda: None, kernels=KernelCapture(rows, str(tmp_path), 1, 1),
    )  # fmt: skip
    optimizer = SimpleNamespace(param_groups=[])
    for _ in range(2):  # what is taken for steps until the job says where they end
        steps.backward_begins([])
        steps.backward_ends()
        steps.optimizer_begins()
        steps.optimizer_ends(optimizer)
    for _ in range(2):
        steps.called(None, None)
    assert len({trace["file"] for trace in traces(rows)}) == len(traces(rows)) == 4
    assert not rows.of("fault")


def test_operators_of_a_recorded_step_stand_in_the_profilers_trace_under_their_times(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder and torch's own profiler; only the GPU is pretended."""
    real, kinds = torch.profiler.profile, torch.profiler.ProfilerActivity
    asked: list[list[Any]] = []

    def profile(activities: list[Any]) -> Any:
        asked.append(activities)
        return real(activities=[kinds.CPU])

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.profiler, "profile", profile)
    recorder = GraphRecorder(rows, Stacks(rows, "none"))
    steps = Steps(
        rows, Stamps(rows), Capture(warmup_steps=0, graph_steps=1), start_ns=None, open_graph=lambda: recorder,
        warmed_up=lambda: None, stop=lambda: None, kernels=KernelCapture(rows, str(tmp_path), 3, 1),
    )  # fmt: skip
    for _ in range(3):  # the first is recorded, with kernels; the second has kernels, the third nothing
        (torch.ones(3, 3) @ torch.ones(3, 3)).add_(1)
        steps.called(None, None)
    steps.finish()
    assert asked == [[kinds.CUDA, kinds.CPU], [kinds.CUDA]]
    first, second = traces(rows)
    assert (first["operators"], second["operators"]) == (True, False)
    start_ns, op = FIELDS["op"].index("start_ns"), FIELDS["op"].index("name")
    called = {f"{OPERATOR}{row[start_ns]}": row[op] for row in rows.of("op")}
    events = json.loads((tmp_path / first["file"]).read_text())["traceEvents"]
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name")).startswith(OPERATOR)}
    assert spans.keys() == called.keys()
    (product,) = (spans[name] for name, op in called.items() if op == "aten.mm.default")
    around, within = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "aten::mm")
    assert around[0] <= product[0] <= within[0] <= within[1] <= product[1] <= around[1]  # it is called again, within
    assert recorder.operator is None
    assert not rows.of("fault")


def test_cupti_is_left_to_a_profiler_that_begins(
    rows: Any, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[bool] = []

    class Free:
        missing: ClassVar[dict[str, str]] = {}
        operator = None

        def start(self, operators: bool) -> None:
            pass

        def drop(self) -> None:
            dropped.append(True)

    monkeypatch.setattr(cupti, "Cupti", Free)
    capture = KernelCapture(rows, str(tmp_path), 1, 1, "cupti")
    assert capture.start()
    with torch.autograd.profiler.profile():
        assert dropped == [True]
        assert not capture.start()
    assert not capture.start()
    assert not traces(rows)
    assert rows.of("fault") == [["kernels", "another profiler began: no kernels are captured from here on"]]
