"""What ran on the devices of one Kineto trace, and who launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from magneton_dist.importers.columns import KINDS, Columns, Ints
from magneton_dist.importers.enclosing import innermost
from magneton_dist.importers.events import number
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.fields import NONE
from magneton_dist.importers.names import Names
from magneton_dist.records.schema import I64, STR
from magneton_dist.tracer.rows import OPERATOR

# ns since the host started: 18 digits are 31 years, and any of them fit 64 bits
_ANNOUNCED = re.compile(re.escape(OPERATOR) + r"(\d{1,18})")
OVERRUN_NS = 10_000  # clocks and rounding are finer
MOST_OUTLASTING = 0.01  # of the activities of a stream
_KINDS = pl.Series(KINDS)
# Of rows with `kind`, `node` and `sm_ppm` as `columns.Columns` has them.
KIND = pl.lit(_KINDS).gather(pl.col("kind")).alias("kind")
HELD = (
    pl.when(pl.col("node") > 0).then("node").cast(I64).alias("graph_node"),
    pl.when(pl.col("sm_ppm") != NONE).then(pl.col("sm_ppm") / 1e6).alias("sm_share"),
)


@dataclass(frozen=True)
class DeviceActivities:
    """What ran on the devices of a trace.

    Attributes:
        rows: stream, kind, name, start_ns, end_ns, and issue_ns of their launch (null: not seen); wall clock, ns.
            graph_node and sm_share as in `ACTIVITIES`; called_ns: when the recorder's operator was called that
            launched it, by its external id (null: none, or not told), as the recorder's clock has it.
        lost: activities that cannot be read, or were dropped before they could be written.
        outlasting: activities whose ends could not be (see `within_streams`).
        waits: start_ns and end_ns of calls in which the main thread waited for the device; wall clock. what: torch's
            name of the operator that did (empty: none); called_ns as in `rows`.
    """

    rows: pl.DataFrame
    lost: int
    outlasting: int
    waits: pl.DataFrame


def read_device(path: Path) -> DeviceActivities:
    """Only what ran on devices; a trace without events holds none.

    Raises:
        RecordError: it is another kind of file, or cut off.
    """
    stream, columns = EventStream(path, device_only=True), Columns(device_only=True)
    for events in stream.batches():
        columns.add(events)
    base = number(stream.head.base_ns) or 0
    device, outlasting, _ = within_streams(launched(columns.device.frame(base), columns.launches.frame(base)))
    announced, ops = _Announced(columns.names), columns.ops.frame(base)
    called = device["called"].to_numpy()  # of our own traces
    called = np.where(called == NONE, announced.around(ops, device), called)
    rows = device.select(
        pl.col("stream").cast(I64), KIND, columns.names.column(pl.col("name")).alias("name"), "start_ns", "end_ns",
        "issue_ns", *HELD, _nullable(called).alias("called_ns"),
    )  # fmt: skip
    syncs = columns.syncs.frame(base)
    waits = syncs.filter(columns.of_main_thread(syncs["thread"].to_numpy()))
    lost = stream.lost_activities + columns.lost_activities + (number(stream.head.dropped) or 0)
    return DeviceActivities(rows, lost, outlasting, _waited(waits, ops, announced, columns.names))


def launched(device: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Activities by start, with when and on which thread they were launched; null where that is not in the trace.

    Args:
        device: columns of `columns.Columns.device`.
        launches: columns of `columns.Columns.launches`; of two with the same correlation the first counts.
    """
    correlation, wanted = launches["correlation"].to_numpy(), device["correlation"].to_numpy()
    order = np.argsort(correlation, kind="stable")
    row = np.append(order, 0)[np.searchsorted(correlation, wanted, sorter=order)]
    seen = (wanted > 0) & (np.append(correlation, NONE)[row] == wanted)
    return device.with_columns(
        pl.Series(alias, np.append(launches[name].to_numpy(), NONE)[row].astype(np.int64)).set(pl.Series(~seen), None)
        for name, alias in (("start_ns", "issue_ns"), ("thread", "launch_thread"))
    ).sort("start_ns", "end_ns")


def within_streams(device: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """`device` (see `launched`) with the ends mended that cannot be, how many those were, and how many were left.

    A stream does one launch after the other. What would outlast a whole later launch of its stream by more than
    `OVERRUN_NS` was not that long, and is taken to end where the next begins. The kernels of a CUDA graph share a
    launch, and may run side by side. A stream in which more than `MOST_OUTLASTING` do so stays as it is: then several
    are shown as one.
    """
    start, end, stream, number_, correlation = (
        device[name].to_numpy() for name in ("start_ns", "end_ns", "stream", "device", "correlation")
    )
    order = np.lexsort((stream, number_))
    other = (stream[order[1:]] != stream[order[:-1]]) | (number_[order[1:]] != number_[order[:-1]])
    overlaps = (end[order[:-1]] - OVERRUN_NS > start[order[1:]]) & ~other
    if not overlaps.any():  # as nearly always
        return device, 0, 0
    streams = np.split(order, np.flatnonzero(other) + 1)
    ends, mended, left = end.copy(), 0, 0
    for rows in streams:
        launch = correlation[rows]
        begins = np.flatnonzero(np.append(True, (launch[1:] != launch[:-1]) | (launch[1:] <= 0)))  # of each launch
        following = np.append(begins[1:], len(rows))[np.cumsum(np.bincount(begins, minlength=len(rows))) - 1]
        soonest = np.append(np.minimum.accumulate(end[rows][::-1])[::-1], np.iinfo(np.int64).max)[following]
        outlasting = np.flatnonzero((following < len(rows)) & (end[rows] - OVERRUN_NS > soonest))
        if len(outlasting) <= max(1, MOST_OUTLASTING * len(rows)):
            ends[rows[outlasting]] = start[rows[following[outlasting]]]
            mended += len(outlasting)
        else:
            left += len(outlasting)
    return device.with_columns(pl.Series("end_ns", ends)) if mended else device, mended, left


def outlasting_words(count: int) -> str:
    """What `within_streams` mended, in words."""
    return (
        f"{count} event(s) on the device last beyond the end of a later one of their stream, which cannot be: they are "
        "taken to end where the next begins"
    )


def by_external_id(ops: pl.DataFrame, device: pl.DataFrame) -> Ints:
    """Row of the operator that launched each activity, as the profiler says; -1 where it does not."""
    ids, wanted = ops["external"].to_numpy(), device["external"].to_numpy()
    if not len(ids) or (wanted == device["correlation"].to_numpy()).all():  # old traces write one for the other
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    row = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    return np.where((ids[row] == wanted) & (wanted != NONE), row, -1)


class _Announced:
    """The operators that the recorder announced to the profiler: their names say when they were called."""

    def __init__(self, names: Names) -> None:
        found = ((n, _ANNOUNCED.fullmatch(text)) for n, text in enumerate(names.known()) if isinstance(text, str))
        self._at = np.full(len(names.known()) + 1, NONE)
        for name, match in found:
            if match is not None:
                self._at[name] = int(match[1])
        self.any = bool((self._at != NONE).any())

    def of(self, ops: pl.DataFrame) -> Ints:
        """When each operator was called; `NONE` of those that were not announced."""
        called: Ints = self._at[ops["name"].to_numpy()]
        return called

    def within(self, ops: pl.DataFrame, thread: Ints, at: Ints) -> Ints:
        """When the operator was called that was announced around each instant of a thread; else `NONE`."""
        if not self.any:
            return np.full(len(at), NONE)
        called = self.of(ops)
        announced = ops.filter(called != NONE)
        found: Ints = np.append(called[called != NONE], NONE)[innermost(announced, thread, at)]
        return found

    def around(self, ops: pl.DataFrame, device: pl.DataFrame) -> Ints:
        """The same of the operators that launched activities, by their external ids."""
        if not self.any:
            return np.full(device.height, NONE)
        row = by_external_id(ops, device)
        return self.within(ops, *(np.append(ops[name].to_numpy(), NONE)[row] for name in ("thread", "start_ns")))


def _waited(waits: pl.DataFrame, ops: pl.DataFrame, announced: _Announced, names: Names) -> pl.DataFrame:
    """`DeviceActivities.waits`."""
    at = waits["thread"].to_numpy(), waits["start_ns"].to_numpy()
    torchs = ops.filter(announced.of(ops) == NONE) if announced.any else ops
    name = np.append(torchs["name"].to_numpy(), NONE)[innermost(torchs, *at)]
    return waits.select(
        "start_ns", "end_ns", names.column(pl.lit(_nullable(name))).fill_null("").alias("what"),
        _nullable(announced.within(ops, *at)).alias("called_ns"),
    ).cast({"what": STR})  # fmt: skip


def _nullable(values: Ints) -> pl.Series:
    """Null for `NONE`."""
    found = pl.Series(values, dtype=I64)
    return found.set(found == NONE, None)
