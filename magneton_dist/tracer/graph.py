"""The operator graph of a step: every operator with the values it read and wrote, its phase and its stack.

A dispatch mode below autograd, entered and left by the step hooks, sees forward, backward, optimizer and
c10d operators, also those of autograd's device threads. Only metadata is looked at. Rows are written when
the step is over: only then is it known which tensors were parameters, gradients and optimizer states.

*forward* is from the first operator that autograd records to the backward pass, with what leads there (input,
gathering of shards); *optimizer* is between the hooks of an optimizer's step; *other* is the rest: clipping,
logging, evaluation. A recomputation in the backward pass (activation checkpointing) is *backward*. A backward
operator has the stack of the forward
operator whose gradient it computes; gradient accumulation, and nodes of an earlier step, have the stack of
the call of the backward pass, or none on a device thread. Python code in the backward pass (hooks, custom
functions, recomputation) has its own.

Limits: a function under `torch.compile` shows as the extern kernels it calls; what a higher-order operator
calls shows as that one operator; operators on other threads of the job do not show; parameters that FSDP has
gathered have no name, only the shards they come from have.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns
from types import FrameType
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr as get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as pop_mode
from torch.utils._python_dispatch import _push_mode as push_mode

from magneton_dist.tracer.arguments import as_json, cut, plain
from magneton_dist.tracer.contents import Contents
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.kernels import Operator
from magneton_dist.tracer.model import Model
from magneton_dist.tracer.schemas import OVERWRITE, effects_of
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks
from magneton_dist.tracer.values import Values

MOST_OPERATORS = 500_000  # of one step; the rest is left out and said

_PLAIN = frozenset({int, bool, type(None)})
_PASSIVE = torch._C._disabled_torch_dispatch_impl
# Tensors without data, on which torch tries an operator out: nothing to record, and not to be deferred to.
_SYMBOLIC = ("FakeTensor", "FunctionalTensor")
# torch wraps every mode in these, to keep dynamo out of it
_WRAPPERS = (os.path.join("torch", "_compile.py"), os.path.join("torch", "_dynamo", "eval_frame.py"))


class _Operator:
    """One operator, from the moment it is called."""

    __slots__ = (
        "arguments",
        "end_ns",
        "inputs",
        "name",
        "outputs",
        "phase",
        "stack_id",
        "start_ns",
        "written",
    )

    def __init__(self, name: str, phase: str, stack_id: int | None) -> None:
        self.name = name
        self.phase = phase
        self.stack_id = stack_id
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.arguments: list[Any] = []
        # tensors that it writes, and their places in the arguments
        self.written: list[tuple[torch.Tensor, dict[str, int]]] = []
        self.start_ns = 0
        self.end_ns = 0


class GraphRecorder(TorchDispatchMode):
    """Records the operators of one step at a time.

    Set `phase` to ``"optimizer"`` between the hooks of an optimizer's step and to None outside, and `operator` to what
    makes each one known to who captures kernels, under the time at which it was called. Nothing here
    raises: what fails is a fault in the record, and the operator returns its result.
    """

    supports_higher_order_operators = True

    def __init__(
        self, spool: Spool, stacks: Stacks, fingerprints: Fingerprints | None = None, contents: Contents | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: str | None = None
        self.operator: Operator | None = None
        self._spool = spool
        self._stacks = stacks
        self._values = Values()
        self._fingerprints = fingerprints
        self._contents = contents
        self._operators: list[_Operator] = []
        self._step = -1
        self._emitted = 0
        self._in_forward = False
        self._nodes = 0  # autograd nodes made by this thread so far
        self._forward_stacks: dict[int, int | None] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: compiled functions stay compiled under this mode."""
        return True

    def start(self, step: int) -> None:
        """Record from here on, as step `step`."""
        try:
            self._step = step
            self._in_forward = False
            self._nodes = get_sequence_nr()
            self.__enter__()  # type: ignore[no-untyped-call]
        except Exception as error:
            self._spool.fault("graph", error)

    def stop(self) -> None:
        """Stop recording and write the rows of the step; about 20 µs per operator."""
        try:
            self._leave()
            if self._fingerprints is not None:
                self._fingerprints.finish(self._values.version_of)
            if self._contents is not None:
                self._contents.finish()
            self._emit()
        except Exception as error:
            self._spool.fault("graph", error)
        finally:
            self._values.forget()
            self._operators = []
            self._forward_stacks = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record `func` and call it; a tensor subclass goes first, what it calls comes back here."""
        subclasses = [kind for kind in types if kind.__torch_dispatch__ is not _PASSIVE]
        if subclasses and all(kind.__name__ not in _SYMBOLIC for kind in subclasses):
            return NotImplemented
        operator = None
        try:
            operator = None if subclasses else self._called(func, args, kwargs or {})
        except Exception as error:
            self._spool.fault("graph", error)
        if operator is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        known = self.operator
        operator.start_ns = monotonic_ns()
        if known is None:
            result = func(*args, **kwargs) if kwargs else func(*args)
        else:
            with known(operator.start_ns):
                result = func(*args, **kwargs) if kwargs else func(*args)
        operator.end_ns = monotonic_ns()
        try:
            self._returned(operator, result)
        except Exception as error:
            self._spool.fault("graph", error)
        return result

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Operator | None:
        effects = effects_of(func)
        if not effects.recorded or not self._spool.live:  # not live: in a forked child
            return None
        if len(self._operators) >= MOST_OPERATORS:
            self._spool.fault("graph", f"only the first {MOST_OPERATORS} operators of a step are recorded")
            return None
        phase = self._phase_now()
        operator = _Operator(effects.name, phase, self._stack_now(phase))
        add, writes = operator.arguments.append, effects.writes
        for position, argument in enumerate(args):
            add(self._mention(operator, argument, writes.get(position)))
        for name, argument in kwargs.items():
            add({"name": name, "value": self._mention(operator, argument, writes.get(name))})
        return operator

    def _mention(self, operator: _Operator, argument: Any, write: str | None) -> Any:
        """JSON form of an argument; its tensors are noted as inputs, or to be written, or both."""
        if type(argument) in _PLAIN:
            return argument
        if isinstance(argument, torch.Tensor):
            place = {"v": 0}
            if write is not None:
                operator.written.append((argument, place))
                if write == OVERWRITE and self._values.covers_storage(argument):
                    return place  # named by what it will be: nothing of what it was is read
            place["v"] = value = self._values.read(argument)
            operator.inputs.append(value)
            if self._contents is not None and self._contents.wanted(operator.name):
                self._contents.keep(value, argument)
            if self._fingerprints is not None and value not in self._fingerprints.known:
                version = self._values.version_of(argument)
                self._fingerprints.read(value, version, argument, operator.name, operator.phase)
            return place
        if isinstance(argument, (list, tuple)):
            return cut([self._mention(operator, item, write) for item in argument])
        return plain(argument)

    def _returned(self, operator: _Operator, result: Any) -> None:
        if type(result).__name__ in _SYMBOLIC:
            return
        if operator.written:
            self._values.write([tensor for tensor, _ in operator.written], operator.outputs)
        self._produce(operator, result)
        for tensor, place in operator.written:
            value = self._made(operator, tensor)
            place["v"] = place["v"] or value
        operator.written = []
        self._operators.append(operator)

    def _produce(self, operator: _Operator, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._made(operator, result)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self._produce(operator, item)

    def _made(self, operator: _Operator, tensor: torch.Tensor) -> int:
        """Id of the value that `operator` left in `tensor`."""
        value = self._values.produce(tensor, operator.outputs)
        if self._fingerprints is not None and value not in self._fingerprints.known:
            version = self._values.version_of(tensor)
            self._fingerprints.written(value, version, tensor, operator.name, operator.phase)
        return value

    def _phase_now(self) -> str:
        nodes = get_sequence_nr()
        recorded, self._nodes = nodes > self._nodes, nodes
        if self.phase is not None:
            return self.phase
        if torch._C._current_graph_task_id() != -1:
            self._in_forward = False
            return "backward"
        self._in_forward = self._in_forward or recorded
        return "forward" if self._in_forward else "other"

    def _stack_now(self, phase: str) -> int | None:
        frame: FrameType | None = sys._getframe(3)
        while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
            frame = frame.f_back
        if phase == "backward" and (frame is None or frame.f_code.co_name == "_engine_run_backward"):
            # Called by the engine, not by Python code in the backward pass.
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else -1
            if number in self._forward_stacks:
                return self._forward_stacks[number]
        stack_id = self._stacks.of(frame).stack_id
        if phase == "forward":
            # Autograd makes the node before it calls the operator: the newest one is this operator's.
            self._forward_stacks.setdefault(self._nodes - 1, stack_id)
        return stack_id

    def _leave(self) -> None:
        """Take this mode off the stack, from below the job's own modes if need be."""
        above = []
        while self in _get_current_dispatch_mode_stack():
            if _get_current_dispatch_mode_stack()[-1] is self:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                break
            above.append(pop_mode())
        for mode in reversed(above):
            push_mode(mode)

    def _extend_forward(self) -> None:
        """What a forward operator reads was made by a forward operator too, although autograd slept."""
        needed: set[int] = set()
        for operator in reversed(self._operators):
            if operator.phase == "other" and not needed.isdisjoint(operator.outputs):
                operator.phase = "forward"
            if operator.phase == "forward":
                needed.update(operator.inputs)

    def _emit(self) -> None:
        self._extend_forward()
        for row in self._values.rows(Model.of_this_process().owned()):
            self._spool.put("value", *row)
        for op_id, operator in enumerate(self._operators, start=self._emitted):
            self._spool.put(
                "op",
                op_id,
                self._step,
                operator.name,
                operator.phase,
                operator.inputs,
                operator.outputs,
                as_json(operator.arguments),
                operator.stack_id,
                operator.start_ns,
                operator.end_ns,
            )
        self._emitted += len(self._operators)
