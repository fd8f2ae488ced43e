"""How far the events of a trace reach, and whether one of them alone reaches further than all others together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from magneton_dist.importers.fields import NONE

FEW = 20  # events: with so few, none of them is out of the ordinary
MOST_BY_ONE = 0.9  # of a trace's length; more because of one single event is worth a word


class Reach(NamedTuple):
    """One event at the edge of a trace: its time (of the start or the end), ns, and the number of its name."""

    t_ns: int
    name: int


class Extent:
    """The first and last instants of a trace's events; two of each, so that one event can be left out."""

    def __init__(self) -> None:
        self._first: list[Reach] = []
        self._last: list[Reach] = []
        self._events = 0

    def add(self, events: pl.DataFrame) -> None:
        """More events: start_ns, end_ns, and name where they have one."""
        if not events.height:
            return
        self._events += events.height
        starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        names = events["name"].to_numpy() if "name" in events.columns else np.full(events.height, NONE)
        two = min(2, events.height)
        for edge, times, rows in (
            (self._first, starts, np.argpartition(starts, two - 1)[:two]),
            (self._last, ends, np.argpartition(ends, -two)[-two:]),
        ):
            edge += [Reach(int(times[row]), int(names[row])) for row in rows]
        self._first = sorted(self._first)[:2]
        self._last = sorted(self._last)[-2:]

    def span_ns(self) -> tuple[int, int]:
        """First start and last end; there are events."""
        return self._first[0].t_ns, self._last[-1].t_ns

    def alone(self) -> tuple[int, int] | None:
        """The event without which the trace would be far shorter: the number of its name, and the ns without it."""
        if self._events < FEW:
            return None
        start, end = self.span_ns()
        without = ((self._last[0].t_ns - start, self._last[1]), (end - self._first[1].t_ns, self._first[0]))
        rest_ns, event = min(without, key=lambda case: case[0])
        return (event.name, rest_ns) if rest_ns < (1 - MOST_BY_ONE) * (end - start) else None
