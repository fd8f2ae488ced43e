"""When collectives ran on a GPU: CUDA events, read later, never waited for.

An event goes into the caller's stream at the issue and another into the stream that is ordered after the
collective. A reader thread asks the events whether they have passed and converts their distances to host time
with an anchor: an event on a stream of its own, whose host time is known to a few microseconds.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch

from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.spool import Spool

_GROUP = 1 + FIELDS["collective"].index("group")
_ANCHOR_NS = 200_000  # longest spin for an anchor; its host time is known as well as the spin was short
_ANCHOR_TRIES = 3
_LOOK_EVERY = 16  # zero payloads: calls outside Join that are looked at
_LOOK_BYTES = 1 << 28
_SLOTS = 4096


class _Anchor(NamedTuple):
    event: Any
    host_ns: int


class DeviceCall:
    """A collective whose times are still on the device."""

    __slots__ = ("end", "row", "slot", "start")

    def __init__(self, row: list[Any], start: Any) -> None:
        self.row = row
        self.start = start
        self.end: Any = None
        self.slot: int | None = None  # of the answer whether the payload was zero


class DeviceTimes:
    """Follows the collectives of one device.

    Args:
        spool: for faults.
        finished: called on the reader's thread with a row, start and end (host ns) and whether it was zero.
        lost: called there with a row whose times cannot be told, and why.
    """

    def __init__(
        self,
        spool: Spool,
        finished: Callable[[list[Any], int, int, bool | None], None],
        lost: Callable[[list[Any], str], None],
    ) -> None:
        self._spool = spool
        self._finished = finished
        self._lost = lost
        self._device = torch.cuda.current_device()
        self._aside = torch.cuda.Stream(self._device)
        self._calls: list[DeviceCall] = []
        self._spare: list[Any] = []
        self._zero = torch.zeros(_SLOTS, dtype=torch.bool, pin_memory=True)
        self._free_slots = list(range(_SLOTS))
        self._looked = 0
        self._last_end_ns: dict[object, int] = {}
        self._anchor = self._new_anchor()
        # While any thread captures a graph, asking an event from another thread would break the capture.
        self._asking = threading.Lock()
        self._capturing = False
        self._follow_captures()

    def issued(self, row: list[Any], payload: Sequence[torch.Tensor], shadow: bool) -> DeviceCall | None:
        """Note the issue in the current stream; None while a CUDA graph is captured.

        Args:
            row: the collective's row.
            payload: tensors to look at for zeros; empty when zeros say nothing about this operator.
            shadow: it is Join's; these are always looked at, others now and then.
        """
        if torch.cuda.is_current_stream_capturing():
            self._spool.fault("collectives capture", "what a CUDA graph captured is not seen when it replays")
            return None
        call = DeviceCall(row, self._record())
        if payload:
            self._looked += 1
            if shadow or self._looked % _LOOK_EVERY == 0:
                self._look(call, payload)
        return call

    def ordered(self, call: DeviceCall) -> None:
        """The current stream is ordered after the collective: its end is when the stream gets here."""
        call.end = self._record()
        self._calls.append(call)

    def resolve(self) -> None:
        """Hand over the calls that have ended; asks, never waits."""
        with self._asking:
            if not self._calls or self._capturing:
                return
            self._anchor = self._new_anchor() or self._anchor
            while self._calls and self._calls[0].end.query():
                self._hand_over(self._calls.pop(0))

    def _hand_over(self, call: DeviceCall) -> None:
        if self._anchor is not None:
            start, end = self._host_ns(self._anchor, call.start), self._host_ns(self._anchor, call.end)
            group = call.row[_GROUP]
            # A communicator runs one after the other: this one began when the one before had ended.
            start = min(max(start, self._last_end_ns.get(group, 0)), end)
            self._last_end_ns[group] = end
            self._finished(call.row, start, end, self._answer(call))
        else:
            self._answer(call)  # frees its slot
            self._lost(call.row, "no pair of times of host and device to place it by")
        self._spare += (call.start, call.end)

    def _follow_captures(self) -> None:
        graph = torch.cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            with self._asking:
                self._capturing = True
            return begin(*args, **kwargs)

        @functools.wraps(end)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return end(*args, **kwargs)
            finally:
                self._capturing = False

        graph.capture_begin = capture_begin  # type: ignore[method-assign]
        graph.capture_end = capture_end  # type: ignore[method-assign]

    def _record(self) -> Any:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _look(self, call: DeviceCall, payload: Sequence[torch.Tensor]) -> None:
        if not self._free_slots or sum([tensor.nbytes for tensor in payload]) > _LOOK_BYTES:
            return
        call.slot = self._free_slots.pop()
        with torch.no_grad():
            found = payload[0].detach().any()
            for tensor in payload[1:]:
                found = found | tensor.detach().any()
            self._zero[call.slot].copy_(found.logical_not(), non_blocking=True)

    def _answer(self, call: DeviceCall) -> bool | None:
        if call.slot is None:
            return None
        answer = bool(self._zero[call.slot])
        self._free_slots.append(call.slot)
        return answer

    def _new_anchor(self) -> _Anchor | None:
        """An event whose host time is known: the shortest of a few spins around an idle stream."""
        best: _Anchor | None = None
        shortest = _ANCHOR_NS
        for _ in range(_ANCHOR_TRIES):
            event = torch.cuda.Event(enable_timing=True)
            before = time.monotonic_ns()
            event.record(self._aside)
            while not event.query():
                if time.monotonic_ns() - before > shortest:
                    break
            else:
                after = time.monotonic_ns()
                if after - before <= shortest:
                    shortest = after - before
                    best = _Anchor(event, (before + after) // 2)
        return best

    @staticmethod
    def _host_ns(anchor: _Anchor, event: Any) -> int:
        # Signed: an event before the anchor is at a negative distance.
        return anchor.host_ns + int(anchor.event.elapsed_time(event) * 1e6)
