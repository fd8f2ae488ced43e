"""Keeps `torch.compile` away from the tracer's functions.

In a compiled region dynamo looks at every Python frame, the tracer's too: it would compile them, count them,
and break graphs over them. Nothing of dynamo is imported for this; the marks lie in torch's C extension.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def passes_through(function: Callable[..., Any]) -> None:
    """`function` itself is never compiled; what it calls of the job and of torch is, as ever."""
    _mark(function, "DEFAULT")


def ends_here(function: Callable[..., Any]) -> None:
    """Neither `function` nor anything it calls is compiled."""
    _mark(function, "SKIP")


def _mark(function: Any, callees: str) -> None:
    action = getattr(_eval_frame, "_FrameAction", None)
    if action is not None:  # else this torch cannot be told
        code = getattr(function, "__func__", function).__code__
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, getattr(action, callees))
        _eval_frame.set_code_exec_strategy(code, strategy)
