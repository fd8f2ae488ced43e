"""How far the events of a trace reach, and whether one of them alone reaches far beyond all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl

from magneton_dist.importers.fields import NONE

FEW = 20  # events: with fewer, none of them is out of the ordinary
MUCH_BY_ONE = 0.5  # of a trace's length; more because of one single event is worth a word


class Edge(NamedTuple):
    """One event at the edge of a trace, ns, and the number of its name."""

    start_ns: int
    end_ns: int
    name: int


class Alone(NamedTuple):
    """An event without which its trace would be far shorter.

    Attributes:
        event: which.
        start_ns, end_ns: of the trace without it.
        apart_ns: between it and all others, none of which it overlaps; negative where it does.
    """

    event: Edge
    start_ns: int
    end_ns: int
    apart_ns: int

    def without(self, events: pl.DataFrame) -> pl.DataFrame:
        """`events` but this one."""
        return events.filter(
            (pl.col("start_ns") != self.event.start_ns) | (pl.col("end_ns") != self.event.end_ns)
        )


class Extent:
    """The first and last of a trace's events; two of each, so that one event can be left out.

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
            two = min(2, events.height)
            for edge, rows in (
                (first, np.argpartition(starts, two - 1)[:two]), (last, np.argpartition(ends, -two)[-two:]),
            ):  # fmt: skip
                edge += [Edge(int(starts[row]), int(ends[row]), int(names[row])) for row in rows]
        self._first = sorted(first)[:2]
        self._last = sorted(last, key=lambda event: event.end_ns)[-2:]

    @property
    def span_ns(self) -> tuple[int, int]:
        """First start and last end."""
        return self._first[0].start_ns, self._last[-1].end_ns

    def alone(self) -> Alone | None:
        """The event to which more than `MUCH_BY_ONE` of the trace's length is due.

        One that begins long before all others but lasts until they begin is none: the job may have been waiting.
        """
        if self._events < FEW:
            return None
        (first, second), (before, last) = self._first, self._last
        without = [(last, (second if first == last else first).start_ns, before.end_ns)]
        if first.end_ns < second.start_ns:
            without.append((first, second.start_ns, last.end_ns))
        event, start, end = min(without, key=lambda case: case[2] - case[1])
        if end - start >= (1 - MUCH_BY_ONE) * (last.end_ns - first.start_ns):
            return None
        return Alone(event, start, end, max(event.start_ns - end, start - event.end_ns))
