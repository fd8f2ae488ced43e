"""States of a rank that computes on the CPU, from stamps of its main thread's clocks.

Between two stamps the thread *wanted* a core for its CPU time plus the time it was runnable without one.
Wanted time is laid at the beginning of the piece: a thread issues, computes, then blocks. With nothing in
flight it is compute and the rest idle; with a collective in flight it is overlap and the rest wait, until the
last peer has arrived, then transfer. A finished rank with only its protocol's collectives in flight computes
nothing useful, however busily it spins: wait and transfer.

Every issue, completion and step edge is a stamp, and besides them only marks are. A piece with one of them
inside has lost that stamp, and is unresolved, as are pieces whose counters jump and the spans of lost calls
and steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.timeline.flights import Flights, lost
from magneton_dist.timeline.intervals import Bools, Ints, cover, cut, intervals
from magneton_dist.timeline.segments import Activity, Segments
from magneton_dist.timeline.window import Window

# A counter may be read this long after its stamp's time, a delay booked this long after it was waited.
LATE_BOOKING_NS = 250_000_000
# A mark may be written this long before or after a stamp of the same moment.
MARK_SLACK_NS = 1_000_000


@dataclass(frozen=True)
class Wanted:
    """Pieces between consecutive stamps; piece i is ``[t[i], t[i+1])``."""

    t: Ints  # n + 1 stamps
    wanted: Ints  # n
    delay: Ints  # n, the part of `wanted` spent without a core
    sound: Bools  # n, counters consistent

    def row(self, at: Ints) -> Ints:
        """The piece holding each instant; -1 or n outside the stamps."""
        return np.searchsorted(self.t, at, side="right") - 1


def wanted(stamps: pl.DataFrame) -> Wanted:
    """Turn cumulative counters into wanted time per piece.

    A counter can be read a little after its stamp's time, so it may fall or rise faster than time: then the
    CPU time belongs to the pieces that follow. A delay is charged when it is over, so what does not fit its
    piece was waited in the ones before. A fall or a rise beyond `LATE_BOOKING_NS` is neither: the piece is not
    sound. Where the kernel keeps no delays, wanted is CPU time.
    """
    stamps = stamps.group_by("t_ns").agg(pl.col("cpu_ns", "delay_ns").max()).sort("t_ns")
    stamps = stamps.with_columns(pl.col("delay_ns").forward_fill().fill_null(0))
    t = stamps["t_ns"].to_numpy()
    if len(t) < 2:
        none = np.empty(0, np.int64)
        return Wanted(t[:0], none, none, none.astype(np.bool_))
    cpu, cpu_sound = _monotone(stamps["cpu_ns"].to_numpy(), t)
    delay, delay_sound = _monotone(stamps["delay_ns"].to_numpy(), t)
    # The greatest curve below that nowhere rises faster than time, then the least such curve above.
    cpu = t + np.minimum.accumulate(cpu - t)
    fitted = t + np.maximum.accumulate((cpu + delay - t)[::-1])[::-1]
    return Wanted(t, np.diff(fitted), np.diff(delay), cpu_sound & delay_sound)


def _monotone(counter: Ints, t: Ints) -> tuple[Ints, Bools]:
    """The counter without jumps and falls, and which pieces change by no more than late reading explains."""
    rise = np.diff(counter)
    sound = (rise >= -LATE_BOOKING_NS) & (rise <= np.diff(t) + LATE_BOOKING_NS)
    level = counter - np.concatenate([[0], np.cumsum(np.where(sound, 0, rise))])
    return np.minimum.accumulate(level[::-1])[::-1], sound


def cpu_segments(tables: Mapping[str, pl.DataFrame], calls: Flights, window: Window) -> Segments:
    """Activities of a CPU rank over its window, before release is applied."""
    steps, collectives = tables["steps"], tables["collectives"]
    pieces = wanted(tables["stamps"])
    issues, ends, marks = collectives["issue_ns"], collectives["end_ns"].drop_nulls(), tables["marks"]["t_ns"]
    edges = pl.concat([issues, ends, steps["start_ns"], steps["end_ns"]]).to_numpy()
    tail = _lost_tail(pieces.t, issues.to_numpy(), edges, marks.to_numpy(), window)
    gone = np.concatenate([lost(tables, window), tail])
    closed = pieces.sound & ~_unstamped(pieces, edges)
    finished = window.end_ns if window.finished_ns is None else window.finished_ns
    cuts = cut(
        window.start_ns, window.end_ns, np.array([finished]), pieces.t, pieces.t[:-1] + pieces.wanted,
        calls.start, calls.arrive, calls.end, gone.ravel(),
    )  # fmt: skip
    at = cuts[:-1]

    row = pieces.row(at)
    inside = (row >= 0) & (row < len(closed))
    row = np.clip(row, 0, max(len(closed) - 1, 0))
    stamped = inside.copy()
    busy = np.zeros(len(at), np.bool_)
    if len(closed):
        stamped &= closed[row]
        busy = at < pieces.t[row] + pieces.wanted[row]

    flying, blocked = calls.blocked(at)
    shadowed = flying & ~calls.purposeful(at) & (at >= finished)
    activity = np.select(
        [cover(gone, at) > 0, shadowed, ~stamped, flying & busy, flying, busy],
        [Activity.UNRESOLVED, blocked, Activity.UNRESOLVED, Activity.OVERLAP, blocked, Activity.COMPUTE],
        Activity.IDLE,
    )
    return Segments(cuts, activity.astype(np.int8))


def _lost_tail(stamps: Ints, issues: Ints, edges: Ints, marks: Ints, window: Window) -> Ints:
    """From the first stamp after the last known call that is no edge or mark: it was a call's, now lost."""
    if not len(issues):
        return np.empty((0, 2), np.int64)
    last = issues.max()
    stray = stamps[stamps > last]
    stray = stray[~np.isin(stray, edges[edges > last])]
    stray = stray[cover(intervals(marks - MARK_SLACK_NS, marks + MARK_SLACK_NS), stray) == 0][:1]
    return intervals(stray, np.full(len(stray), window.end_ns))


def _unstamped(pieces: Wanted, edges: Ints) -> Bools:
    """Which pieces hold an edge without a stamp."""
    missing = np.zeros(len(pieces.wanted), np.bool_)
    if not len(missing):
        return missing
    row = pieces.row(edges)
    within = (row >= 0) & (row < len(missing)) & (pieces.t[np.maximum(row, 0)] != edges)
    missing[row[within]] = True
    return missing


def contention(stamps: pl.DataFrame, window: Window) -> float | None:
    """Share of the wanted time in the window that was spent waiting for a core; None when not recorded."""
    if not stamps["delay_ns"].is_not_null().any():
        return None
    pieces = wanted(stamps)
    used = pieces.sound & (pieces.t[:-1] >= window.start_ns) & (pieces.t[1:] <= window.end_ns)
    total = int(pieces.wanted[used].sum())
    return float(pieces.delay[used].sum()) / total if total else None
