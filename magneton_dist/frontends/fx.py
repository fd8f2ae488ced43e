"""A torch callable as TorchDynamo sees it: one FX graph of ATen operators, run node by node.

The way of the paper. Dynamo captures the callable as a whole, AOTAutograd turns it into operators without
side effects, and each node of that graph is run and recorded. Only the forward pass is in it, and what Python
decides (branches, loops) is as it was in this call. Stacks are of the user's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import has_side_effect

from magneton_dist.errors import InputError
from magneton_dist.tracer import annotate
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.knobs import emit_knobs
from magneton_dist.tracer.origin import Frame
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stack, Stacks

VERSIONS = {"torch": str(torch.__version__)}

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_TRACER = str(Path(annotate.__file__).parent)

# Dynamo keeps what it compiled for a function and a backend: the backend is one, where to record may change.
_recording: ContextVar[Spool] = ContextVar("magneton_dist_fx")


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], spool: Spool) -> None:
    """Capture ``function(*args, **kwargs)``, run its graph once and write its rows into `spool`.

    Raises:
        InputError: Dynamo cannot capture the callable as one graph.
    """
    for mark in (annotate.enter, annotate.leave):
        has_side_effect(mark)  # nobody reads its result: it would be removed as dead code
    token = _recording.set(spool)
    try:
        with torch.no_grad():
            torch.compile(function, backend=_backend, fullgraph=True, dynamic=False)(*args, **kwargs)
    except TorchDynamoException as error:
        raise InputError(
            f"TorchDynamo cannot capture it as one graph: {str(error).strip().splitlines()[0]}",
            where=getattr(function, "__qualname__", type(function).__qualname__),
            do='record it with framework="torch"',
        ) from error
    finally:
        _recording.reset(token)
    emit_knobs(spool)


def _lowered(graph: GraphModule, example_inputs: list[Any]) -> Any:
    def run(*inputs: Any) -> Any:
        spool = _recording.get()
        stacks = _NodeStacks(spool)
        recorder = GraphRecorder(spool, stacks, Fingerprints(spool))
        recorder.start(0)
        try:
            return _NodeByNode(graph, stacks).run(*inputs)
        finally:
            recorder.stop()

    return make_boxed_func(run)


_backend = aot_autograd(fw_compiler=_lowered)


class _NodeStacks(Stacks):
    """The stack of whatever runs is that of the graph's node."""

    def __init__(self, spool: Spool) -> None:
        super().__init__(spool)
        self.node: Node | None = None
        self._spool = spool
        self._of_frames: dict[tuple[Frame, ...], Stack] = {}

    def of(self, frame: FrameType | None) -> Stack:
        """The stack of the current node, whatever the Python frame."""
        text = (self.node.meta.get("stack_trace") if self.node is not None else None) or ""
        found = [(file, int(line), function) for file, line, function in _FRAME.findall(text)]
        frames = tuple(frame for frame in reversed(found) if not frame[0].startswith(_TRACER))
        if frames not in self._of_frames:
            self._of_frames[frames] = Stack(len(self._of_frames), frames)
            self._spool.put("stack", len(self._of_frames) - 1, frames)
        return self._of_frames[frames]


class _NodeByNode(Interpreter):
    def __init__(self, graph: GraphModule, stacks: _NodeStacks) -> None:
        super().__init__(graph)
        self._stacks = stacks

    def run_node(self, n: Node) -> Any:
        self._stacks.node = n
        return super().run_node(n)
