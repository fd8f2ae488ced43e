"""Sequences of what a job does, and the steps that a reader of it would count by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from magneton_dist.tracer import steps as steps_module
from magneton_dist.tracer.environment import Capture
from magneton_dist.tracer.stamps import Stamps
from magneton_dist.tracer.steps import Steps


class Stop(BaseException):
    pass


class Optimizer:
    param_groups: list[dict[str, Any]] = []  # noqa: RUF012


class Recorder:
    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self.phase: str | None = None
        self.log = log

    def start(self, step: int) -> None:
        self.log.append(("start", step))

    def stop(self) -> None:
        self.log.append(("stop", self.phase))


class Job:
    """Plays a job against `Steps`."""

    def __init__(self, rows: Any, capture: Capture | None = None, start_ns: int | None = None) -> None:
        self.rows = rows
        self.log: list[tuple[str, Any]] = []
        self.recorder = Recorder(self.log)
        self.steps = Steps(
            rows, Stamps(rows), capture or Capture(warmup_steps=0, graph_steps=0), start_ns=start_ns,
            open_graph=lambda: self.recorder, warmed_up=lambda: self.log.append(("warm", None)), stop=self.stop,
        )  # fmt: skip

    def stop(self) -> None:
        raise Stop

    def backward(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps.backward_begins([])
            self.steps.backward_ends()

    def fire(self, *optimizers: Any) -> None:
        for optimizer in optimizers:
            self.steps.optimizer_begins()
            self.steps.optimizer_ends(optimizer)

    @property
    def written(self) -> list[list[Any]]:
        return self.rows.of("step")

    @property
    def kinds(self) -> list[Any]:
        return [row[3] for row in self.written]


def test_one_optimizer(rows):
    job, optimizer = Job(rows), Optimizer()
    for _ in range(3):
        job.backward()
        job.fire(optimizer)
    assert [row[0] for row in job.written] == [0, 1, 2]
    assert all(row[2] > row[1] for row in job.written)
    assert [row[1] for row in job.written[1:]] == [row[2] for row in job.written[:-1]]  # no gaps
    assert job.steps.last_end_ns == job.written[-1][2]


def test_every_edge_has_a_stamp(rows):
    job = Job(rows)
    for _ in range(3):
        job.backward()
        job.fire(optimizer := Optimizer())
    assert optimizer is not None
    stamps = {row[0] for row in rows.of("stamp")}
    assert {edge for row in job.written for edge in row[1:3]} <= stamps


def test_gradient_accumulation(rows):
    job, optimizer = Job(rows), Optimizer()
    for _ in range(3):
        job.backward(4)
        job.fire(optimizer)
    assert len(job.written) == 3


def test_optimizers_that_take_turns_end_a_step_together(rows):
    job, first, second = Job(rows), Optimizer(), Optimizer()
    times = []
    for _ in range(4):
        job.backward()
        job.fire(first)
        time.sleep(0.002)
        job.fire(second)
        times.append(time.monotonic_ns())
    assert len(job.written) == 4
    # From the second iteration on the step ends with the last of them.
    for row, after in list(zip(job.written, times, strict=True))[1:]:
        assert 0 < after - row[2] < 1_000_000


def test_optimizers_with_backward_passes_of_their_own(rows):
    job, generator, discriminator = Job(rows), Optimizer(), Optimizer()
    for _ in range(3):
        job.backward()
        job.fire(discriminator)
        job.backward()
        job.fire(generator)
    assert len(job.written) == 6


def test_fewer_optimizers_than_before_end_a_step_all_the_same(rows):
    job, first, second = Job(rows), Optimizer(), Optimizer()
    for both in (True, True, False, False, True, True):
        job.backward()
        job.fire(first, second) if both else job.fire(first)
    job.backward()
    assert len(job.written) == 6


def test_an_optimizer_that_needs_no_backward_pass(rows):
    job, optimizer = Job(rows), Optimizer()
    job.fire(optimizer, optimizer, optimizer)
    assert len(job.written) == 3


def test_optimizer_in_backward(rows, monkeypatch: pytest.MonkeyPatch):
    job, optimizers = Job(rows), [Optimizer() for _ in range(5)]
    for _ in range(3):
        job.steps.backward_begins([])
        with monkeypatch.context() as inside:
            inside.setattr(torch._C, "_current_graph_task_id", lambda: 7)
            job.fire(*optimizers)
        job.steps.backward_ends()
    assert len(job.written) == 3


def test_an_optimizer_that_calls_backward_itself(rows):
    job, optimizer = Job(rows), Optimizer()
    for _ in range(3):  # as LBFGS does with its closure
        job.steps.optimizer_begins()
        job.backward(5)
        job.steps.optimizer_ends(optimizer)
    assert len(job.written) == 3


def test_calls_override_all_else(rows):
    job, optimizer = Job(rows), Optimizer()
    before = time.monotonic_ns()
    for tokens in (10, 20, 30):
        job.backward(2)
        job.fire(optimizer)
        job.steps.called(tokens, "tokens")
    (mark,) = rows.of("mark")
    assert mark[0] == "steps_by_call"
    assert before < mark[1]
    said = [row for row in job.written if row[2] > mark[1]]  # what a reader keeps
    assert [[row[0], *row[3:]] for row in said] == [
        [0, "measured", 10, "tokens"], [1, "measured", 20, "tokens"], [2, "measured", 30, "tokens"],
    ]  # fmt: skip
    assert said[0][1] == job.written[0][1]  # the first one begins where tracing began


def test_calls_without_an_optimizer_need_no_mark(rows):
    job = Job(rows)
    for _ in range(3):
        job.steps.called(None, None)
    job.steps.finish()
    assert [row[0] for row in job.written] == [0, 1, 2]
    assert rows.of("mark") == []


def test_unknown_optimizer_steps_are_backward_passes(rows):
    job = Job(rows)
    job.backward(100)
    assert [row[0] for row in job.written] == list(range(100))
    assert len(rows.of("fault")) == 1
    job.steps.finish()
    assert len(job.written) == 100


def test_few_backward_passes_become_steps_at_the_end(rows):
    job = Job(rows)
    job.backward(5)
    assert job.written == []
    job.steps.finish()
    assert [row[0] for row in job.written] == [0, 1, 2, 3, 4]


def test_an_optimizer_that_does_not_fire_shows_by_what_it_writes(rows):
    job, parameter = Job(rows), torch.nn.Parameter(torch.ones(3))
    for _ in range(4):
        for _ in range(2):  # gradient accumulation
            job.steps.backward_begins([(parameter * 2).sum()])
            job.steps.backward_ends()
        with torch.no_grad():
            parameter.sub_(0.1)
    assert len(job.written) == 3  # the last one is seen with the next backward pass
    job.steps.finish()
    assert [row[0] for row in job.written] == [0, 1, 2, 3]
    assert len(rows.of("fault")) == 1


def test_long_accumulation_is_not_taken_for_steps(rows):
    job, optimizer = Job(rows), Optimizer()
    for _ in range(2):
        job.backward(steps_module._BACKWARDS_WITHOUT_OPTIMIZER - 1)
        job.fire(optimizer)
    job.steps.finish()
    assert len(job.written) == 2
    assert rows.of("fault") == []


def test_kinds_and_the_recorder(rows):
    job, optimizer = Job(rows, Capture(warmup_steps=2, graph_steps=2)), Optimizer()
    for _ in range(6):
        job.backward()
        job.steps.optimizer_begins()
        phase = job.recorder.phase
        job.steps.optimizer_ends(optimizer)
        job.log.append(("phase", phase))
    assert job.kinds == ["warm-up", "warm-up", "traced", "traced", "measured", "measured"]
    assert [entry for entry in job.log if entry[0] != "phase"] == [
        ("warm", None), ("start", 2), ("stop", None), ("start", 3), ("stop", None),
    ]  # fmt: skip
    assert [phase for name, phase in job.log if name == "phase"][2:4] == ["optimizer", "optimizer"]


def test_the_traced_step_pays_for_its_recorder(rows):
    job, optimizer = Job(rows, Capture(warmup_steps=1, graph_steps=1)), Optimizer()
    job.recorder.stop = lambda: time.sleep(0.05)  # type: ignore[method-assign]
    for _ in range(3):
        job.backward()
        job.fire(optimizer)
    lengths = [row[2] - row[1] for row in job.written]
    assert lengths[1] >= 50_000_000
    assert lengths[2] < 25_000_000


def test_without_warm_up_the_first_step_is_traced(rows):
    job, optimizer = Job(rows, Capture(warmup_steps=0, graph_steps=1)), Optimizer()
    job.backward()
    job.fire(optimizer)
    job.fire(optimizer)
    assert job.kinds == ["traced", "measured"]
    assert job.log == [("warm", None), ("start", 0), ("stop", None)]


def test_a_recorder_that_fails_is_a_fault(rows):
    job, optimizer = Job(rows, Capture(warmup_steps=1, graph_steps=1)), Optimizer()

    def fail(step: int) -> None:
        raise RuntimeError("no")

    job.recorder.start = fail  # type: ignore[method-assign]
    for _ in range(3):
        job.backward()
        job.fire(optimizer)
    assert job.kinds == ["warm-up", "measured", "measured"]
    assert [where for where, _ in rows.of("fault")] == ["graph"]


def test_steps_aside_for_another_dispatch_mode(rows):
    from torch.utils.flop_counter import FlopCounterMode

    job, optimizer = Job(rows, Capture(warmup_steps=1, graph_steps=1)), Optimizer()
    with FlopCounterMode(display=False):
        for _ in range(3):
            job.backward()
            job.fire(optimizer)
    assert job.log == [("warm", None)]
    assert [where for where, _ in rows.of("fault")] == ["graph"]


def test_stops_after_the_last_wanted_step(rows):
    job, optimizer = Job(rows, Capture(warmup_steps=1, graph_steps=0, stop_after_steps=2)), Optimizer()
    job.backward()
    job.fire(optimizer)
    job.backward()
    with pytest.raises(Stop):
        job.fire(optimizer)
    assert len(job.written) == 2


def test_start_can_lie_in_the_past(rows):
    job = Job(rows, start_ns=5)
    job.fire(Optimizer())
    assert job.written[0][1] == 5


def test_optimizers_are_kept_for_the_digest_only_on_the_cpu(rows):
    job = Job(rows)
    on_cpu = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    elsewhere = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device="meta"))], lr=0.1)
    job.backward()
    job.fire(on_cpu, elsewhere)
    assert job.steps.living_optimizers() == [on_cpu, elsewhere]
    del on_cpu, elsewhere
    (left,) = job.steps.living_optimizers()
    assert left.param_groups[0]["params"][0].is_cpu


def test_an_earlier_training_is_not_kept(rows):
    job = Job(rows)
    for _ in range(2):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        for _ in range(30):
            job.backward()
            job.fire(optimizer)
    assert job.steps.living_optimizers() == [optimizer]
