"""How far the events of a trace reach, and whether a few of them reach far beyond all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl

from magneton_dist.importers.fields import NONE

MANY = 20  # events: with fewer, none of them is out of the ordinary
MUCH = (0.5, 0.9, 0.9)  # of a trace's length; more because of one, two or three events is worth a word
FEW = len(MUCH)


class Edge(NamedTuple):
    """One event at the edge of a trace, ns, and the number of its name."""

    start_ns: int
    end_ns: int
    name: int


class Strays(NamedTuple):
    """Events without which their trace would be far shorter.

    Attributes:
        events: which.
        start_ns, end_ns: of the trace without them.
    """

    events: tuple[Edge, ...]
    start_ns: int
    end_ns: int

    def apart(self, least_ns: int) -> list[Edge]:
        """Those that have no other event but each other within `least_ns`."""
        return [e for e in self.events if max(e.start_ns - self.end_ns, self.start_ns - e.end_ns) >= least_ns]


class Extent:
    """The first and last of a trace's events.

    Args:
        frames: the events: start_ns, end_ns, and name where they have one; not all are empty.
    """

    def __init__(self, frames: Iterable[pl.DataFrame]) -> None:
        first: list[Edge] = []
        last: list[Edge] = []
        self._events = 0
        for events in frames:
            if not events.height:
                continue
            self._events += events.height
            starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
            names = events["name"].to_numpy() if "name" in events.columns else np.full(events.height, NONE)
            most = min(2 * FEW + 1, events.height)
            for edge, rows in (
                (first, np.argpartition(starts, most - 1)[:most]), (last, np.argpartition(ends, -most)[-most:]),
            ):  # fmt: skip
                edge += [Edge(int(starts[row]), int(ends[row]), int(names[row])) for row in rows]
        self._first = sorted(first)[: 2 * FEW + 1]
        self._last = sorted(last, key=lambda event: event.end_ns)[-2 * FEW - 1 :]

    @property
    def span_ns(self) -> tuple[int, int]:
        """First start and last end."""
        return self._first[0].start_ns, self._last[-1].end_ns

    def strays(self) -> Strays | None:
        """The fewest events, at most `FEW`, to which `MUCH` of the trace's length is due.

        One that begins long before all others but lasts until they begin is none: the job may have been waiting.
        """
        if self._events < MANY:
            return None
        start, end = self.span_ns
        for count in range(1, FEW + 1):
            found = (self._without(front, count - front) for front in range(count + 1))
            best = min(filter(None, found), key=lambda strays: strays.end_ns - strays.start_ns, default=None)
            if best is not None and best.end_ns - best.start_ns < (1 - MUCH[count - 1]) * (end - start):
                return best
        return None

    def _without(self, front: int, back: int) -> Strays | None:
        """The trace without so many of its first and last events."""
        late = self._last[len(self._last) - back :]
        early = [event for event in self._first if event not in late][:front]
        gone = (*early, *late)
        start = next((event.start_ns for event in self._first if event not in gone), None)
        end = next((event.end_ns for event in reversed(self._last) if event not in gone), None)
        if start is None or end is None or any(event.end_ns >= start for event in early):
            return None
        return Strays(gone, start, end)
