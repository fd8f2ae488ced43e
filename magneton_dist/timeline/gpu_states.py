"""States of a rank that computes on a GPU, from its kernels where they were captured.

A captured window is a `kernels` mark: its time is the window's end, its detail ``{"start_ns": ns,
"activities": n}`` says where it began and how many activities the profiler saw begin in it. With all n in the
table, kernels and copies are compute, collectives wait or transfer, both overlap, nothing idle. With fewer,
some kernel is missing and nothing in the window proves the device free: idle, wait and transfer become
unresolved. Outside captured windows collectives tell wait and transfer, the rest is unresolved.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.timeline.flights import Flights, lost
from magneton_dist.timeline.intervals import Bools, Ints, cover, cut, intervals
from magneton_dist.timeline.segments import Activity, Segments
from magneton_dist.timeline.window import Window

CAPTURE_MARK = "kernels"
COMPUTES = ("kernel", "memcpy", "memset")


class _Capture(msgspec.Struct, frozen=True):
    start_ns: int
    activities: int


def captured(marks: pl.DataFrame, activities: pl.DataFrame) -> tuple[Ints, Bools]:
    """Captured windows, shape [n, 2], and which of them have all the activities that they had.

    Raises:
        RecordError: a mark's detail is not as documented.
    """
    marks = marks.filter(pl.col("name") == CAPTURE_MARK)
    try:
        details = [msgspec.json.decode(d or "", type=_Capture) for d in marks["detail"]]
    except msgspec.MsgspecError as error:
        what = f"a {CAPTURE_MARK!r} mark has a detail that cannot be read: {error}"
        raise RecordError(what, where="table 'marks'") from error
    windows = np.array(
        [(d.start_ns, t) for d, t in zip(details, marks["t_ns"], strict=True)], dtype=np.int64
    ).reshape(-1, 2)
    starts = np.sort(activities["start_ns"].to_numpy())
    found = np.searchsorted(starts, windows[:, 1]) - np.searchsorted(starts, windows[:, 0])
    return windows, found >= np.array([d.activities for d in details], np.int64)


def gpu_segments(tables: Mapping[str, pl.DataFrame], calls: Flights, window: Window) -> Segments:
    """Activities of a GPU rank over its window, before release is applied."""
    activities, gone = tables["activities"], lost(tables, window)
    windows, whole = captured(tables["marks"], activities)
    computing = _spans(activities, pl.col("kind").is_in(COMPUTES))
    communicating = _spans(activities, pl.col("kind") == "collective")
    cuts = cut(
        window.start_ns, window.end_ns, windows.ravel(), computing.ravel(), communicating.ravel(),
        calls.start, calls.arrive, calls.end, gone.ravel(),
    )  # fmt: skip
    at = cuts[:-1]

    unresolved = Activity.UNRESOLVED
    seen, proven = cover(windows, at) > 0, cover(windows[whole], at) > 0
    compute = seen & (cover(computing, at) > 0)
    flying, blocked = calls.blocked(at)
    # A collective kernel without a call is in flight, but nobody knows for whom it waits.
    stray = seen & (cover(communicating, at) > 0) & ~flying
    flying, blocked = flying | stray, np.where(stray, unresolved, blocked)
    activity = np.select(
        [cover(gone, at) > 0, compute & flying, compute, seen & ~proven, flying, seen],
        [unresolved, Activity.OVERLAP, Activity.COMPUTE, unresolved, blocked, Activity.IDLE],
        unresolved,
    )
    return Segments(cuts, activity.astype(np.int8))


def _spans(activities: pl.DataFrame, which: pl.Expr) -> Ints:
    chosen = activities.lazy().filter(which).select("start_ns", "end_ns").collect()
    return intervals(chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy())
