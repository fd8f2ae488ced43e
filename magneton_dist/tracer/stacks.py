"""Python call stacks, each written once and then known by its id."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

from magneton_dist.tracer.origin import Frame, classify
from magneton_dist.tracer.spool import Spool

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEEPEST = 96  # frames looked at; deeper ones are the outermost and say least
_MOST = 20_000  # distinct stacks kept: generated code must not grow the process without bound


class Stack:
    """One distinct stack: its id in the record and what its frames say about the origin of a collective."""

    __slots__ = ("_origins", "frames", "stack_id")

    def __init__(self, stack_id: int | None, frames: tuple[Frame, ...]) -> None:
        self.stack_id = stack_id
        self.frames = frames
        self._origins: dict[bool, str] = {}

    def origin(self, in_backward: bool) -> str:
        """Origin of a collective issued here, worked out once."""
        known = self._origins.get(in_backward)
        if known is None:
            known = self._origins[in_backward] = classify(self.frames, in_backward)
        return known


class Stacks:
    """The stacks seen by this process.

    Args:
        spool: where a new stack is written.
        record: False writes no stacks (ids are None); origins are still read off them.
    """

    def __init__(self, spool: Spool, record: bool = True) -> None:
        self._spool = spool
        self._record = record
        self._by_place: dict[tuple[int, ...], Stack] = {}
        self._by_frames: dict[tuple[Frame, ...], Stack] = {}
        self._code: list[CodeType] = []  # kept alive: their addresses stand in the keys
        self._lock = threading.Lock()

    def here(self, skip: int = 0) -> int | None:
        """Id of the caller's stack without its `skip` innermost frames; None when stacks are not recorded."""
        return self.of(sys._getframe(1 + skip)).stack_id

    def of(self, frame: FrameType | None) -> Stack:
        """The stack whose innermost frame is `frame`."""
        place: list[int] = []
        add = place.append
        here = frame
        for _ in range(_DEEPEST):
            if here is None:
                break
            add(id(here.f_code))
            add(here.f_lasti)
            here = here.f_back
        key = tuple(place)
        known = self._by_place.get(key)
        return self._add(key, frame) if known is None else known

    def _add(self, key: tuple[int, ...], innermost: FrameType | None) -> Stack:
        frames, code = _read(innermost)
        with self._lock:
            stack = self._by_frames.get(frames)
            if stack is None:
                if len(self._by_frames) >= _MOST:
                    self._spool.fault("stacks", f"only the first {_MOST} distinct stacks are recorded")
                    return Stack(None, frames)
                stack = Stack(len(self._by_frames) if self._record else None, frames)
                self._by_frames[frames] = stack
                if self._record:
                    self._spool.put("stack", stack.stack_id, frames)
            self._code += code
            self._by_place[key] = stack
        return stack


def _read(frame: FrameType | None) -> tuple[tuple[Frame, ...], list[CodeType]]:
    """Frames from `frame` outwards without the tracer's own, and the code objects of all."""
    frames: list[Frame] = []
    code: list[CodeType] = []
    while frame is not None and len(code) < _DEEPEST:
        code.append(frame.f_code)
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            frames.append((file, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames), code
