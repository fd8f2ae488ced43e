"""Device states: a table that cuts a rank's window into consecutive rows, one activity each.

Two axes. Phase: working, or finished (this rank has no more work while others have). Activity: compute,
overlap, transfer, wait, idle, unresolved, released. Rows are in order, without gaps or overlaps, and their
lengths add up to the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.records.schema import I64, Column, Table
from magneton_dist.timeline.cpu_states import contention, cpu_segments
from magneton_dist.timeline.flights import flights
from magneton_dist.timeline.gpu_states import gpu_segments
from magneton_dist.timeline.intervals import cut
from magneton_dist.timeline.segments import Activity, Segments
from magneton_dist.timeline.window import Window

PHASES = ("working", "finished")
ACTIVITIES = tuple(a.name.lower() for a in Activity)
CPU = "cpu"

STATES = Table("states", "one stretch of time in which a rank's device was in one state", {
    "start_ns": Column(I64, "ns", "start, on the rank's own clock"),
    "end_ns": Column(I64, "ns", "end; the next row's start"),
    "phase": Column(pl.Enum(PHASES), "", "working or finished"),
    "activity": Column(pl.Enum(ACTIVITIES), "", "compute, overlap, transfer, wait, idle, unresolved or released"),
})


@dataclass(frozen=True)
class RankStates:
    """The states of one rank over its window."""

    states: pl.DataFrame  # STATES
    contention: float | None  # share of wanted CPU time spent waiting for a core; None on a GPU


def derived_name(phase: str, activity: str) -> str:
    """The name of a state in reports: shadow, done, released, or the activity itself."""
    if phase == "finished" and activity in ("wait", "transfer", "overlap"):
        return "shadow"
    return "done" if phase == "finished" and activity == "idle" else activity


def rank_states(
    tables: Mapping[str, pl.DataFrame], arrivals: pl.DataFrame, window: Window, device: str = CPU
) -> RankStates:
    """Cut a rank's window into states.

    Args:
        tables: the rank's record: steps, collectives, collective_sums, and stamps (CPU) or activities and
            marks (GPU).
        arrivals: the rank's rows of `Joined.arrivals`.
        window: on the rank's own clock.
        device: "cpu", or the GPU's UUID.
    """
    calls = flights(tables["collectives"], arrivals)
    # of a trace without a device its operators are the activities; only a job that was recorded has stamps
    by_stamps = device == CPU and not tables["activities"].height
    segments = (cpu_segments if by_stamps else gpu_segments)(tables, calls, window)
    contended = contention(tables["stamps"], window) if device == CPU else None
    return RankStates(_table(segments, window), contended)


def _table(segments: Segments, window: Window) -> pl.DataFrame:
    """Apply phase and release, and merge neighbours in the same state."""
    finished = window.end_ns if window.finished_ns is None else window.finished_ns
    released = window.end_ns if window.released_ns is None else window.released_ns
    cuts = cut(window.start_ns, window.end_ns, segments.cuts, np.array([finished, released]))
    at = cuts[:-1]
    activity = segments.activity[np.searchsorted(segments.cuts, at, side="right") - 1]
    activity = np.where(at >= released, np.int8(Activity.RELEASED), activity)
    phase = at >= min(finished, released)
    first = np.flatnonzero(np.diff(activity + np.int8(len(Activity)) * phase, prepend=-1))
    return pl.DataFrame(
        {
            "start_ns": at[first],
            "end_ns": np.append(at[first[1:]], window.end_ns)[: len(first)],
            "phase": pl.Series(PHASES, dtype=pl.Enum(PHASES)).gather(phase[first].astype(np.int64)),
            "activity": pl.Series(ACTIVITIES, dtype=pl.Enum(ACTIVITIES)).gather(activity[first].astype(np.int64)),
        },
        schema=STATES.schema,
    )
