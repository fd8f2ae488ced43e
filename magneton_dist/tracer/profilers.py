"""Torch's profiler serves one at a time: whoever starts it takes it from whoever has it, whose end then may crash.

The job's own comes first. Ours gives way before another begins, and does not begin when another is on or warms up.
Only jobs whose kernels are captured are watched in this way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
from torch.autograd import profiler

_BEGIN, _END = ("_prepare_profiler", "_enable_profiler"), "_disable_profiler"


class OtherProfilers:
    """Whether somebody else has torch's profiler.

    Args:
        give_way: called before another one begins.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._active = False
        self._ours = False
        for name in (*_BEGIN, _END):
            if hasattr(profiler, name):
                setattr(profiler, name, self._watched(getattr(profiler, name), name != _END))

    @property
    def active(self) -> bool:
        """Is another one on, or about to be?"""
        return self._active or bool(torch._C._autograd._profiler_enabled())

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Within, what begins and ends is no other."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def _watched(self, call: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*arguments: Any, **named: Any) -> Any:
            if not self._ours:
                if begins:
                    self._give_way()
                self._active = begins
            return call(*arguments, **named)

        return watched
