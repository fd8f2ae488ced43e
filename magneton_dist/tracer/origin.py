"""Who issued a collective: read off its Python stack, or said by the code that issues it.

Torch's own callers are recognised by their frames, so nothing of DDP, FSDP or Join has to be replaced, and it
makes no difference under which name or through which helper a script uses them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Frame = tuple[str, int, str]  # file, line, function

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JOIN = "/torch/distributed/algorithms/join.py"
_DDP = "/torch/nn/parallel/distributed.py"
_FSDP = "/torch/distributed/fsdp/"
_CUSTOM_BACKWARD = "/torch/autograd/function.py"
_ENGINE = ("/torch/autograd/graph.py", "_engine_run_backward")
_MODULE_CALL = "/torch/nn/modules/module.py"
_JOIN_CONTROL = ("_get_num_nonjoined_procs", "_notify_procs_to_terminate", "notify_join_context")
_DDP_JOIN_CONTROL = "_check_global_requires_backward_grad_sync"


class _Said(threading.local):
    name: str | None = None


_said = _Said()
_labels = 0  # entered so far in this process: most jobs have none, and then there is nothing to look up


@contextmanager
def label(name: str) -> Iterator[None]:
    """Collectives issued inside (by this thread) have origin `name`. Nothing happens in the dark."""
    global _labels
    _labels += 1
    before = _said.name
    _said.name = name
    try:
        yield
    finally:
        _said.name = before


def said() -> str | None:
    """The label this thread is in, if any."""
    return _said.name if _labels else None


def classify(frames: Sequence[Frame], in_backward: bool) -> str:
    """Origin of a collective issued at `frames` (innermost first).

    Args:
        frames: the stack of the call.
        in_backward: the autograd engine is running on this thread.
    """
    join = _join_origin(frames)
    if join is not None:
        return join
    for file, _, function in frames:
        if file.startswith(_OURS):  # `sync` in between, on behalf of whoever called
            continue
        if _FSDP in file:
            return "fsdp"
        if file.endswith(_DDP):
            if in_backward:
                return "ddp"
            return "join_control" if function == _DDP_JOIN_CONTROL else "ddp_buffers"
        if in_backward:
            if file.endswith(_CUSTOM_BACKWARD):
                return "user"
            if file.endswith(_ENGINE[0]) and function == _ENGINE[1]:
                return "ddp"
        elif "/torch/" not in file or file.endswith(_MODULE_CALL):
            return "user"
    # No frame decided: an autograd thread, where only the reducer issues collectives from C++.
    return "ddp" if in_backward else "user"


def _join_origin(frames: Sequence[Frame]) -> str | None:
    """Inside `Join.__exit__` everything is Join's; its hooks may be anyone's functions."""
    inner: list[str] = []
    for file, _, function in frames:
        if file.endswith(_JOIN):
            if function in _JOIN_CONTROL:
                return "join_control"
            if function == "__exit__":
                return "join_final" if "post_hook" in inner else "join_shadow"
        inner.append(function)
    return None
