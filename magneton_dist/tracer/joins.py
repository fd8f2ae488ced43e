"""When a rank enters `Join`, runs out of batches, and is let go again, and from which line of the script."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

from torch.distributed.algorithms import join

from magneton_dist.tracer import uncompiled
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks


def follow(spool: Spool, stacks: Stacks) -> None:
    """Put marks at the edges of every `Join`: the methods are wrapped, whatever a script calls the class."""
    enter: Any = join.Join.__enter__
    leave: Any = join.Join.__exit__

    def mark(name: str, stack_id: int | None) -> None:
        spool.put("mark", name, time.monotonic_ns(), json.dumps({"stack_id": stack_id}))

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        if self._enable:
            mark("join_enter", stacks.here(skip=1))
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, kind: Any, value: Any, traceback: Any) -> Any:
        if not self._enable or kind is not None:
            return leave(self, kind, value, traceback)
        stack_id = stacks.here(skip=1)
        mark("join_exit", stack_id)
        try:
            return leave(self, kind, value, traceback)
        finally:
            mark("join_done", stack_id)

    uncompiled.passes_through(__enter__)
    uncompiled.passes_through(__exit__)
    uncompiled.ends_here(mark)
    uncompiled.ends_here(stacks.here)
    join.Join.__enter__ = __enter__  # type: ignore[method-assign]
    join.Join.__exit__ = __exit__  # type: ignore[method-assign]
