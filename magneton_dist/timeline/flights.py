"""A rank's collectives as sets of intervals: waiting for peers, transferring, unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.timeline.intervals import Bools, Ints, cover, intervals
from magneton_dist.timeline.segments import Activity
from magneton_dist.timeline.window import PROTOCOL, Window


@dataclass(frozen=True)
class Flights:
    """Completed calls of a rank, sorted by start; row i is one call."""

    call_id: Ints
    start: Ints
    arrive: Ints  # the last peer's arrival, within [start, end]; end where it is not known
    end: Ints
    known: Bools  # the arrival is known
    protocol: Bools  # only keeps an uneven-input protocol going

    def blocked(self, at: Ints) -> tuple[Bools, NDArray[np.int8]]:
        """Which instants have a call in flight, and what a device that does nothing else is doing then.

        Transfer if any call has all its peers, since then data move; wait if all of them lack one; unresolved
        if some call's last arrival is not known.
        """
        known = self.known
        flying = cover(intervals(self.start, self.end), at) > 0
        moving = cover(intervals(self.arrive[known], self.end[known]), at) > 0
        unknown = cover(intervals(self.start[~known], self.end[~known]), at) > 0
        activity = np.select([moving, unknown], [Activity.TRANSFER, Activity.UNRESOLVED], Activity.WAIT)
        return flying, activity.astype(np.int8)

    def purposeful(self, at: Ints) -> Bools:
        """Which instants have a call in flight that does the job's own work."""
        return cover(intervals(self.start[~self.protocol], self.end[~self.protocol]), at) > 0


def flights(collectives: pl.DataFrame, arrivals: pl.DataFrame) -> Flights:
    """The calls of one rank with their last arrivals.

    Args:
        collectives: the rank's table.
        arrivals: the rank's rows of `Joined.arrivals`; without one, a call's last arrival is unknown.
    """
    calls = collectives.filter(pl.col("end_ns").is_not_null())
    calls = calls.join(arrivals.select("call_id", "last_arrival_ns"), on="call_id", how="left")
    calls = calls.with_columns(pl.coalesce("start_ns", "issue_ns").alias("start_ns"))
    calls = calls.sort("start_ns", "call_id")
    start = calls["start_ns"].to_numpy()
    end = np.maximum(calls["end_ns"].to_numpy(), start)
    known = calls["last_arrival_ns"].is_not_null()
    arrive = calls.select(pl.coalesce("last_arrival_ns", "end_ns")).to_series().to_numpy()
    return Flights(
        calls["call_id"].to_numpy(),
        start,
        np.clip(arrive, start, end),
        end,
        known.to_numpy(),
        calls["origin"].is_in(PROTOCOL).fill_null(False).to_numpy(),
    )


def lost(tables: Mapping[str, pl.DataFrame], window: Window) -> Ints:
    """Where the record has lost a step, a call, or the end of a call that may have been in flight."""
    calls, steps = tables["collectives"], tables["steps"]
    step_ends = np.sort(steps["end_ns"].to_numpy())
    lost_calls = _lost_calls(calls, tables["collective_sums"], step_ends, window)
    return np.concatenate([lost_calls, _lost_ends(calls, step_ends, window), _lost_steps(steps)])


def _lost_calls(calls: pl.DataFrame, sums: pl.DataFrame, step_ends: Ints, window: Window) -> Ints:
    """Around gaps in the calls' numbers, which have none of their own.

    A lost call began between the calls around the gap, and may have lasted until the end of the step that
    follows (past the last step, of the next call). Calls lost at the end are known by the cap's sums.
    """
    calls = calls.sort("call_id")
    number, issue = calls["call_id"].to_numpy(), calls["issue_ns"].to_numpy()
    end = calls["end_ns"].fill_null(window.end_ns).to_numpy()
    issued = len(number) + sums["count"].sum()
    gap = np.flatnonzero(np.diff(number, prepend=-1, append=max([issued, *number[-1:] + 1])) > 1)
    previous = np.concatenate([[window.start_ns], issue])[gap]
    end_of_step = _end_of_step(step_ends, np.append(issue, window.end_ns)[gap], window.start_ns)
    return intervals(previous, np.maximum(end_of_step, np.append(end, window.end_ns)[gap]))


def _lost_ends(calls: pl.DataFrame, step_ends: Ints, window: Window) -> Ints:
    """From the issue of a call without an end to the end of its group's next one, or of its step."""
    later = pl.col("end_ns").fill_null(window.end_ns).cum_min(reverse=True).over("group")
    calls = calls.sort("call_id").with_columns(later.alias("later")).filter(pl.col("end_ns").is_null())
    issue = calls["issue_ns"].to_numpy()
    end_of_step = _end_of_step(step_ends, issue, window.end_ns)
    return intervals(issue, np.minimum(end_of_step, calls["later"].to_numpy()))


def _end_of_step(step_ends: Ints, at: Ints, none: int) -> Ints:
    """The end of the step around each instant; `none` after the last step."""
    return np.append(step_ends, none)[np.searchsorted(step_ends, at)]


def _lost_steps(steps: pl.DataFrame) -> Ints:
    """Between the steps around a gap in their numbers."""
    steps = steps.sort("step")
    gap = np.flatnonzero(np.diff(steps["step"].to_numpy()) > 1)
    return intervals(steps["end_ns"].to_numpy()[gap], steps["start_ns"].to_numpy()[gap + 1])
