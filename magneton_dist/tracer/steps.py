"""Where the steps of a rank begin and end.

A step ends with the optimizer: at the first firing of its step hooks after a new backward pass (at the last
of several optimizers that take turns), at the end of a backward pass that updates its parameters itself, or
where `magneton_dist.step` is called, which overrides all else. An optimizer whose hooks do not fire (it is not
torch's, or it is compiled) shows itself by the parameters it writes: the step ends where the next backward
pass begins. Where even that cannot be seen, a step is a backward pass.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import Any, Callable, Protocol

import torch

from magneton_dist.tracer.environment import Capture
from magneton_dist.tracer.kernels import KernelCapture, Operator
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stamps import Stamps
from magneton_dist.tracer.updates import ParameterWatch

# So many backward passes without any sign of an optimizer are no gradient accumulation.
_BACKWARDS_WITHOUT_OPTIMIZER = 64
# An optimizer that has not fired for so many steps belongs to an earlier training.
_IDLE_STEPS = 20


class Graph(Protocol):
    """What records the operators of a step: `magneton_dist.tracer.graph.GraphRecorder`."""

    phase: str | None
    operator: Operator | None  # makes an operator known to who captures kernels

    def start(self, step: int) -> None:
        """Record from here on."""

    def stop(self) -> None:
        """Write what was recorded."""


class Steps:
    """Writes `step` rows and acts at the edges of steps.

    Args:
        spool: where to write.
        stamps: clocks, read at every edge.
        capture: how many steps of which kind, and after how many to stop.
        start_ns: begin of step 0; None for now.
        open_graph: makes the recorder when the first step to be traced begins; None when there is none.
        warmed_up: called before the end of the last warm-up step (or at once when there is none).
        stop: called after the last wanted step; does not return.
        kernels: captures those of some steps; None: of no step.
    """

    def __init__(
        self,
        spool: Spool,
        stamps: Stamps,
        capture: Capture,
        *,
        start_ns: int | None,
        open_graph: Callable[[], Graph | None],
        warmed_up: Callable[[], None],
        stop: Callable[[], None],
        kernels: KernelCapture | None = None,
    ) -> None:
        self.step = 0  # the one the rank is in
        self.last_end_ns: int | None = None
        self.firings = 0
        self._spool = spool
        self._stamps = stamps
        self._capture = capture
        self._open_graph = open_graph
        self._warmed_up = warmed_up
        self._stop = stop
        self._kernels = kernels
        self._with_kernels: int | None = None  # the step whose kernels are captured
        self._graph: Graph | None = None
        self._still_to_trace = capture.graph_steps
        self._recording = False
        self._recorded_step: int | None = None
        now = stamps.stamp()
        self._first_ns = self._start_ns = now if start_ns is None else start_ns
        self._by_call = False  # steps end where `magneton_dist.step` is called
        self._fired: set[int] = set()  # optimizers that fired since the last new backward pass
        self._take_turns = 1  # optimizers that fire in a step
        self._closed = False  # the step of the optimizers in `_fired` has ended
        self._fired_at_ns = 0
        self._fired_in_backward = False
        self._optimizers: dict[int, Any] = {}  # by id: the optimizer, or a weak reference to it
        self._fired_in_step: dict[int, int] = {}  # when last
        self._backward_ends_ns: list[int] = []  # not yet taken for steps
        self._backwards_are_steps = False
        self._parameters = ParameterWatch()
        self._updates_seen = False
        if capture.warmup_steps == 0:
            warmed_up()
        self._begin()

    # --- what the session's hooks report -------------------------------------------------------------------

    def backward_begins(self, outputs: Iterable[Any]) -> None:
        """A backward pass starts from `outputs`."""
        if self._fired:
            self._next_turn()
        elif self._fired_in_backward:  # the pass in which the process became known as a rank
            self._fired_in_backward = False
            self._close(self._fired_at_ns)
        elif not self.firings and not self._by_call and self._parameters.changed(outputs):
            self._updates_seen = True
            self._backward_ends_ns.clear()
            self._spool.fault("steps", "no optimizer's hooks fire: a step ends where the next backward begins")
            self._close()

    def backward_ends(self) -> None:
        """A backward pass is over."""
        if self._by_call:
            return
        if self._fired_in_backward:
            self._fired_in_backward = False
            self._close()
        elif not self.firings:
            self._count_backward(time.monotonic_ns())

    def optimizer_begins(self) -> None:
        """An optimizer's step starts."""
        if self._graph is not None:
            self._graph.phase = "optimizer"

    def optimizer_ends(self, optimizer: Any) -> None:
        """An optimizer's step is over."""
        if self._graph is not None:
            self._graph.phase = None
        self.firings += 1
        key = id(optimizer)
        if key not in self._optimizers:
            self._remember(optimizer)
        self._fired_in_step[key] = self.step
        if self._by_call:
            return
        self._fired_at_ns = time.monotonic_ns()
        if torch._C._current_graph_task_id() != -1:
            self._fired_in_backward = True
            return
        if key in self._fired:  # the same again, without a backward pass that we could see
            self._next_turn()
        self._fired.add(key)
        if not self._closed and len(self._fired) >= self._take_turns:
            self._closed = True
            self._close()

    def called(self, units: float | None, unit: str | None) -> None:
        """The job says itself that a step ends here, with its units."""
        if not self._by_call:
            self._by_call = True
            if self.step:
                # What was taken for steps so far is void: readers drop the rows before this mark.
                self._spool.put("mark", "steps_by_call", time.monotonic_ns(), None)
                self.step, self._start_ns, self._with_kernels = 0, self._first_ns, None
        self._close(units=units, unit=unit)

    def finish(self) -> None:
        """The process ends: write what is still held back."""
        if not self.firings and not self._by_call:
            if self._updates_seen:
                del self._backward_ends_ns[:-1]
            else:
                self._say_backwards()
            self._write_backwards()
        self._stop_kernels()
        self._stop_graph()

    def living_optimizers(self) -> list[Any]:
        """The optimizers that fired, as far as they still live."""
        held = [kept() if isinstance(kept, weakref.ref) else kept for kept in self._optimizers.values()]
        return [optimizer for optimizer in held if optimizer is not None]

    def _remember(self, optimizer: Any) -> None:
        """Keep an optimizer for the digest of its parameters, which comes when the job may have dropped it.

        Memory of a GPU is never held for that, and of several trainings in a process only the last is kept.
        """
        groups = getattr(optimizer, "param_groups", None) or [{"params": []}]
        on_cpu = all(parameter.device.type == "cpu" for parameter in groups[0]["params"])
        self._optimizers[id(optimizer)] = optimizer if on_cpu else weakref.ref(optimizer)

    # --- edges ---

    def _next_turn(self) -> None:
        """The optimizers that fired belong to one step; the next firing belongs to the next one."""
        if not self._closed and not self._by_call:
            self._close(self._fired_at_ns)  # fewer than before took part
        self._take_turns = len(self._fired)
        self._fired.clear()
        self._closed = False

    def _count_backward(self, end_ns: int) -> None:
        self._backward_ends_ns.append(end_ns)
        self._stamps.stamp()
        if self._updates_seen:
            return
        if self._backwards_are_steps or len(self._backward_ends_ns) >= _BACKWARDS_WITHOUT_OPTIMIZER:
            self._backwards_are_steps = True
            self._say_backwards()
            self._stop_graph()
            self._write_backwards()
            self._begin()

    def _say_backwards(self) -> None:
        if self._backward_ends_ns:
            self._spool.fault("steps", "no optimizer can be seen: a step is a backward pass")

    def _write_backwards(self) -> None:
        for end_ns in self._backward_ends_ns:
            self._write(end_ns, None, None)
        self._backward_ends_ns.clear()

    def _close(
        self, end_ns: int | None = None, units: float | None = None, unit: str | None = None
    ) -> None:
        """The step ends, now or at `end_ns`. What the tracer still does for it counts as part of it."""
        self._stop_kernels()
        self._stop_graph()
        if self.step == self._capture.warmup_steps - 1:
            self._warmed_up()
        self._write(self._stamps.stamp() if end_ns is None else end_ns, units, unit)
        self._begin()

    def _write(self, end_ns: int, units: float | None, unit: str | None) -> None:
        if self.step < self._capture.warmup_steps:
            kind = "warm-up"
        elif self.step == self._recorded_step:
            kind = "traced"
        elif self.step == self._with_kernels:
            kind = "kernels"
        else:
            kind = "measured"
        self._spool.put("step", self.step, self._start_ns, end_ns, kind, units, unit)
        self._start_ns = self.last_end_ns = end_ns
        self.step += 1
        if len(self._optimizers) > 1:
            for key in [key for key, last in self._fired_in_step.items() if last < self.step - _IDLE_STEPS]:
                del self._fired_in_step[key], self._optimizers[key]

    def _begin(self) -> None:
        stop_after = self._capture.stop_after_steps
        if stop_after is not None and self.step >= stop_after:
            self._stop()
        measured = self.step - self._capture.warmup_steps
        if measured >= 0 and self._still_to_trace:
            self._start_graph()
        if self._kernels is not None and measured >= 0:
            # those of traced steps are launched by known operators; their times are the recorder's too
            after = measured - self._capture.graph_steps
            wanted = self._recording or (after >= 0 and self._kernels.wanted(after))
            if wanted and self._kernels.start(operators=self._recording):
                self._with_kernels = self.step
                if self._graph is not None:
                    self._graph.operator = self._kernels.operator

    def _stop_kernels(self) -> None:
        if self._kernels is not None:
            if self._graph is not None:
                self._graph.operator = None
            self._kernels.stop(self.step)

    def _start_graph(self) -> None:
        if torch._C._len_torch_dispatch_stack():
            self._spool.fault("graph", "another dispatch mode is active: no operators recorded")
            self._still_to_trace = 0
            return
        try:
            if self._graph is None:
                self._graph = self._open_graph()
            if self._graph is None:
                self._still_to_trace = 0
                return
            self._graph.start(self.step)
            self._recorded_step = self.step
            self._recording = True
            self._still_to_trace -= 1
        except Exception as error:
            self._still_to_trace = 0
            self._spool.fault("graph", error)

    def _stop_graph(self) -> None:
        if self._recording and self._graph is not None:
            self._recording = False
            try:
                self._graph.stop()
            except Exception as error:
                self._spool.fault("graph", error)
