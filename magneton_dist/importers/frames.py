"""The events of one trace as frames, after what cannot be was mended or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.importers.columns import Columns
from magneton_dist.importers.device import launched, within_streams
from magneton_dist.importers.extent import FEW, Edge, Extent, Strays

APART_NS = 600_000_000_000  # no trace has a few events, and then for so long no other
MOST_MISSING = 0.001  # of the kernels that were launched
OF_ACTIVITY = ["start_ns", "end_ns", "kind", "name", "stream", "device", "correlation"]


@dataclass
class Frames:
    """The frames of `columns.Columns`; times are ns on the host's wall clock.

    Attributes:
        device: activities by start, with their launches (see `device.launched`).
        ops, marks, functions, syncs: what the host did.
        span_ns: first and last instant of any of them.
        dropped: events that were left out, by reason.
        outlasting, overlapping: activities whose end was mended, or left (see `device.within_streams`).
        missing: activities that must have been, and are not there.
        unseen: kernels of launches that are not there, of `kernels`; missing, unless CUDA graphs were captured.
        strays: a few events to which much of the trace's length is due.
    """

    device: pl.DataFrame
    ops: pl.DataFrame
    marks: pl.DataFrame
    functions: pl.DataFrame
    syncs: pl.DataFrame
    span_ns: tuple[int, int]
    dropped: Counter[str]
    outlasting: int
    overlapping: int
    missing: int
    unseen: int
    kernels: int
    strays: Strays | None


def frames_of(columns: Columns, base_ns: int, dropped_activities: int) -> Frames:
    """The events that `columns` collected, of which there are some.

    Args:
        columns: with the events.
        base_ns: is added to their times.
        dropped_activities: activities that could not be read at all.
    """
    dropped = columns.lost.copy()
    unread = dropped_activities + columns.lost_activities
    launches, device = columns.launches.frame(base_ns), columns.device.frame(base_ns)
    unseen = max(0, _unseen(launches, device) - unread)
    kernels = int(launches["kernel"].sum())
    device, outlasting, overlapping = within_streams(launched(_once(device, dropped), launches))
    ops, marks, functions, syncs = (
        rows.frame(base_ns) for rows in (columns.ops, columns.marks, columns.functions, columns.syncs)
    )
    times = launches.select("start_ns", "end_ns")
    activities = device.height
    extent = Extent((times, device, ops, marks, functions))
    for _ in range(FEW):  # with some gone others may stand out
        strays = extent.strays()
        apart = [] if strays is None else strays.apart(APART_NS)
        if not apart:
            break
        dropped["times far from those of all others"] += len(apart)
        times, device, ops, marks, functions, syncs = (
            _without(events, apart) for events in (times, device, ops, marks, functions, syncs)
        )
        extent = Extent((times, device, ops, marks, functions))
    # what is launched while a graph is captured is not run
    missing = unread + (0 if columns.captures else unseen) + activities - device.height
    return Frames(
        device, ops, marks.unique(["start_ns", "end_ns", "name", "thread"], keep="first", maintain_order=True),
        functions, syncs.unique(maintain_order=True), extent.span_ns, dropped, outlasting, overlapping, missing, unseen,
        kernels, extent.strays(),
    )  # fmt: skip


def _without(events: pl.DataFrame, edges: Sequence[Edge]) -> pl.DataFrame:
    gone = pl.DataFrame({"start_ns": [e.start_ns for e in edges], "end_ns": [e.end_ns for e in edges]})
    return events.join(gone, on=["start_ns", "end_ns"], how="anti", maintain_order="left")


def _unseen(launches: pl.DataFrame, device: pl.DataFrame) -> int:
    """Kernels that were launched before others that are among the activities, and are not; 0 where they are few."""
    kernels = launches.filter((pl.col("kernel") == 1) & (pl.col("correlation") > 0))
    seen = np.isin(kernels["correlation"].to_numpy(), device["correlation"].to_numpy())
    if not seen.any():
        return kernels.height if device.height else 0
    start = kernels["start_ns"].to_numpy()
    unseen = int((~seen & (start < start[seen].max())).sum())
    return unseen if unseen > MOST_MISSING * kernels.height else 0


def _once(device: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Activities of which none says all that an earlier one says; those left out are counted in `dropped`.

    Only of launches that started one activity: what one CUDA graph launched may be alike.
    """
    again = device["correlation"].is_duplicated() & (device["correlation"] > 0)
    if not again.any():
        return device
    rows = device.with_row_index().filter(again)
    rows = rows.filter(pl.col("start_ns").n_unique().over("correlation") == 1)
    twice = rows.filter(~pl.struct(OF_ACTIVITY).is_first_distinct())["index"]
    if twice.is_empty():
        return device
    dropped["all that another one says"] += len(twice)
    kept = np.ones(device.height, np.bool_)
    kept[twice.to_numpy()] = False
    return device.filter(kept)
