"""The events of one trace as frames, after what cannot be was mended or left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.importers.columns import Columns
from magneton_dist.importers.device import launched, within_streams
from magneton_dist.importers.extent import Alone, Extent
from magneton_dist.importers.fields import NONE

BEYOND = 0.9  # of a trace's length: an event to which more than this is due has a wrong time
MOST_BEYOND = 3  # events of which that is believed
MOST_MISSING = 0.01  # of the kernels that were launched; the last ones may run after the trace has ended
MOST_NAME = 60  # characters
OF_ACTIVITY = ("start_ns", "end_ns", "kind", "name", "stream", "device", "correlation", "node")


@dataclass
class Frames:
    """The frames of `columns.Columns`; times are ns on the host's wall clock.

    Attributes:
        device: activities by start, with their launches (see `device.launched`).
        ops, marks, functions, syncs: what the host did.
        span_ns: first and last instant of any of them.
        mended, dropped: events, by reason.
        outlasting: activities whose end was mended (see `device.within_streams`).
        missing: activities that must have been, and are not there.
        unseen: of those the ones of kernels that were launched, of `kernels` launches.
        alone: an event to which much of the trace's length is due and which may yet be right.
    """

    device: pl.DataFrame
    ops: pl.DataFrame
    marks: pl.DataFrame
    functions: pl.DataFrame
    syncs: pl.DataFrame
    span_ns: tuple[int, int]
    mended: Counter[str]
    dropped: Counter[str]
    outlasting: int
    missing: int
    unseen: int
    kernels: int
    alone: Alone | None


def frames_of(columns: Columns, base_ns: int, dropped_activities: int) -> Frames:
    """The events that `columns` collected, of which there are some.

    Args:
        columns: with the events.
        base_ns: is added to their times.
        dropped_activities: activities that could not be read at all.
    """
    mended: Counter[str] = Counter()
    dropped = columns.lost.copy()
    launches, device = columns.launches.frame(base_ns), columns.device.frame(base_ns)
    unseen, kernels = _unseen(launches, device)
    device, outlasting = within_streams(_once(launched(device, launches), dropped))
    launches = launches.select("start_ns", "end_ns")
    ops, marks, functions, syncs = (
        rows.frame(base_ns) for rows in (columns.ops, columns.marks, columns.functions, columns.syncs)
    )
    activities = device.height
    for _ in range(MOST_BEYOND + 1):
        extent = Extent((launches, device, ops, marks, functions))
        alone = extent.alone()
        if alone is None or alone.share < BEYOND:
            break
        why = f"a time far beyond those of all others ({name_of(columns, alone)})"
        (dropped if alone.apart else mended)[why] += 1
        launches, device, ops, marks, functions, syncs = (
            alone.within(events) for events in (launches, device, ops, marks, functions, syncs)
        )
    unread = dropped_activities + columns.lost_activities
    unseen = max(0, unseen - unread)  # what cannot be read was launched, too
    missing = unread + unseen + activities - device.height
    return Frames(
        device, ops, marks.unique(("start_ns", "end_ns", "name", "thread"), keep="first", maintain_order=True),
        functions, syncs, extent.span_ns, mended, dropped, outlasting, missing, unseen, kernels, alone,
    )  # fmt: skip


def name_of(columns: Columns, alone: Alone) -> str:
    """Its name, as far as it fits into a line."""
    name = alone.event.name
    return "a call of the runtime" if name == NONE else columns.names.texts()[name][:MOST_NAME]


def _unseen(launches: pl.DataFrame, device: pl.DataFrame) -> tuple[int, int]:
    """Launches of kernels that are not among the activities, 0 where they are few; and how many launches there are."""
    launched_ = launches.filter((pl.col("kernel") == 1) & (pl.col("correlation") > 0))["correlation"].to_numpy()
    count = len(launched_)
    unseen = int((~np.isin(launched_, device["correlation"].to_numpy())).sum()) if device.height else 0
    return unseen if unseen > max(1, MOST_MISSING * count) else 0, count


def _once(device: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Activities by start, without those that equal the one before; counted in `dropped`."""
    again = np.ones(max(0, device.height - 1), np.bool_)
    for name in OF_ACTIVITY:
        if not again.any():
            return device
        values = device[name].to_numpy()
        again &= values[1:] == values[:-1]
    if not again.any():
        return device
    dropped["all that another says"] += int(again.sum())
    return device.filter(np.append(True, ~again))
