"""CPU time that a thread certainly burnt while it stood in calls that wait for the device."""

from __future__ import annotations

import numpy as np
import polars as pl

from magneton_dist.timeline.intervals import Ints, before, union


def spun(stamps: pl.DataFrame, waits: Ints) -> int | None:
    """The least CPU time of the main thread within `waits`, ns; None where no stamps lie around any of them.

    Between two stamps the thread can have computed outside of the waits for no longer than they leave; what CPU time
    it used beyond that it used within them. A thread that sleeps in its waits comes to 0, one that polls to about
    their length. CPU time that others kept it from counts for neither.

    Args:
        stamps: `STAMPS` of the main thread.
        waits: shape [n, 2], ns on the same clock.
    """
    clocks = stamps.group_by("t_ns").agg(pl.col("cpu_ns").max()).sort("t_ns")
    t, cpu = clocks["t_ns"].to_numpy(), clocks["cpu_ns"].to_numpy()
    if len(t) < 2 or not len(waits):
        return None
    waited = np.diff(before(union(waits), t))
    length = np.diff(t)
    if not waited.any():
        return None
    used = np.clip(np.diff(cpu), 0, length)
    return int(np.maximum(0, used + waited - length).sum())
