"""How far the events of a trace reach, and whether one of them alone reaches further than all others together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from magneton_dist.importers.fields import NONE

FEW = 20  # events: with so few, none of them is out of the ordinary
MOST_BY_ONE = 0.9  # of a trace's length; more because of one single event is worth a word


class Edge(NamedTuple):
    """One event at the edge of a trace, ns, and the number of its name."""

    start_ns: int
    end_ns: int
    name: int


class Extent:
    """The first and last of a trace's events; two of each, so that one event can be left out."""

    def __init__(self) -> None:
        self._first: list[Edge] = []
        self._last: list[Edge] = []
        self._events = 0

    def add(self, events: pl.DataFrame) -> None:
        """More events: start_ns, end_ns, and name where they have one."""
        if not events.height:
            return
        self._events += events.height
        starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        names = events["name"].to_numpy() if "name" in events.columns else np.full(events.height, NONE)
        two = min(2, events.height)
        for edge, rows in (
            (self._first, np.argpartition(starts, two - 1)[:two]),
            (self._last, np.argpartition(ends, -two)[-two:]),
        ):
            edge += [Edge(int(starts[row]), int(ends[row]), int(names[row])) for row in rows]
        self._first = sorted(self._first)[:2]
        self._last = sorted(self._last, key=lambda event: event.end_ns)[-2:]

    def span_ns(self) -> tuple[int, int]:
        """First start and last end; there are events."""
        return self._first[0].start_ns, self._last[-1].end_ns

    def alone(self) -> tuple[int, int] | None:
        """The event without which the trace would be far shorter: the number of its name, and the ns without it.

        One that begins long before all others but lasts until they begin is none: the job may have been waiting.
        """
        if self._events < FEW:
            return None
        (first, second), (before, last) = self._first, self._last
        without = [(before.end_ns - (second if first == last else first).start_ns, last)]
        if first.end_ns < second.start_ns:
            without.append((last.end_ns - second.start_ns, first))
        rest_ns, event = min(without, key=lambda case: case[0])
        length_ns = last.end_ns - first.start_ns
        return (event.name, rest_ns) if rest_ns < (1 - MOST_BY_ONE) * length_ns else None
