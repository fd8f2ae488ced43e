"""What the host did while the device idled: from launches, the loader's annotations and the runtime's calls.

The device idles from the end of all that ran before to the start of what runs next. Until that was launched the
host is to blame, and within it the loader where the host was fetching data; what is left is between launch and
start.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.importers.columns import LOADER
from magneton_dist.importers.fields import NONE
from magneton_dist.importers.steps import step_of
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.timeline.intervals import before, intervals, union

Ints = NDArray[np.int64]

MOST_CAUSES = 300  # rows of a rank; the smallest are put together by kind and step
AT_ONCE = 1 << 17  # activities that are looked at together, which bounds the memory that it takes


def causes(
    device: pl.DataFrame, op: Ints, loader: pl.DataFrame, syncs: pl.DataFrame, within: Ints, ops: pl.DataFrame,
    steps: pl.DataFrame, *, whole: bool,
) -> pl.DataFrame:
    """Why the device idled in the steps, and where the host waited for it.

    Args:
        device: all activities, sorted by start, with `issue_ns` (null: unknown).
        op: of each activity the row of the operator that launched it, -1 where none is known.
        loader: start_ns, end_ns and name of the loader's work.
        syncs: the runtime's calls that wait for the device.
        within: of each of those the row of the operator that made it, -1 where none did.
        ops: name and stack of the operators.
        steps: `STEPS`, sorted by start.
        whole: no activity is missing; else nothing proves that the device idled.

    Returns:
        step, kind, name and stack (numbers of the trace), count and duration_ns summed over all with the same.
    """
    fetches = int(loader["name"].mode().to_numpy().min()) if loader.height else None
    rows = [*(idle_times(device, op, loader, steps) if whole else ()), _synchronised(syncs, within)]
    return _largest(_sums(pl.concat(_of_operators(part, ops, steps, fetches) for part in rows)))


def fetches(marks: pl.DataFrame) -> pl.DataFrame:
    """The loader's work, of all that is annotated (with `annotation`, its name)."""
    return marks.filter(pl.col("annotation").str.contains(LOADER))


def loading(activities: pl.DataFrame, marks: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """How long a rank without a device fetched data and computed nothing (`HOST_TIMES`); else nothing tells why.

    Args:
        activities: what it computed, `ACTIVITIES`.
        marks: what is annotated, with `annotation`.
        steps: `STEPS`, sorted by start.
    """
    loader = fetches(marks)
    if not activities.height or not loader.height or not steps.height:
        return HOST_TIMES.empty()
    computing = activities.sort("start_ns").with_columns(issue_ns="start_ns")
    rows = pl.concat(idle_times(computing, np.full(computing.height, NONE), loader, steps))
    rows = rows.filter(pl.col("kind") == "loader")
    rows = rows.with_columns(
        step_of(steps, rows["at"]).alias("step"), pl.lit(loader["annotation"].mode().sort()[0]).alias("what"),
        pl.lit(None, pl.Int64).alias("stack_id"),
    )  # fmt: skip
    sums = rows.group_by("step", "kind", "what", "stack_id").agg(
        pl.len().alias("count"), pl.col("duration_ns").sum()
    )
    return sums.sort("step").select(*HOST_TIMES.schema).cast(pl.Schema(HOST_TIMES.schema))


def idle_times(
    device: pl.DataFrame, op: Ints, loader: pl.DataFrame, steps: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """The stretches in which the device idled since the first of the steps began, by cause.

    Args:
        device, op, loader, steps: as of `causes`.

    Yields:
        kind, op (that ended it), at (its end, ns), duration_ns.
    """
    opens = busy_until = int(steps["start_ns"].to_numpy().min())
    fetching = union(intervals(loader["start_ns"].to_numpy(), loader["end_ns"].to_numpy()))
    for first in range(0, device.height, AT_ONCE):
        part = device[first : first + AT_ONCE]
        start = part["start_ns"].to_numpy()
        busy = np.maximum.accumulate(np.concatenate([[busy_until], part["end_ns"].to_numpy()]))
        busy_until = int(busy[-1])
        row = np.flatnonzero((start > busy[:-1]) & (start > opens))
        begin, until = np.maximum(busy[row], opens), start[row]
        issue = part["issue_ns"].fill_null(NONE).to_numpy()[row]
        known = issue != NONE
        launched = np.clip(np.where(known, issue, begin), begin, until)
        loading = before(fetching, launched) - before(fetching, begin) if len(fetching) else np.zeros_like(begin)
        parts = {
            "loader": loading * known,
            "host": (launched - begin - loading) * known,
            "launch": (until - launched) * known,
            "unknown": (until - begin) * ~known,
        }
        for kind, duration in parts.items():
            kept = np.flatnonzero(duration > 0)
            yield pl.DataFrame({
                "op": op[first + row[kept]].astype(np.int64), "at": until[kept] - 1, "duration_ns": duration[kept],
            }).select(pl.lit(kind).alias("kind"), pl.all())  # fmt: skip


def _synchronised(calls: pl.DataFrame, op: Ints) -> pl.DataFrame:
    """The runtime's calls that wait for the device, in the form of `idle_times`."""
    return calls.select(
        pl.lit("sync").alias("kind"), pl.Series("op", op, pl.Int64), pl.col("start_ns").alias("at"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
    )  # fmt: skip


def _of_operators(rows: pl.DataFrame, ops: pl.DataFrame, steps: pl.DataFrame, fetches: int | None) -> pl.DataFrame:
    """Sums of such rows over step, kind, and name and stack of the operator; `fetches`: the loader's name."""
    op = rows["op"].set(rows["op"] < 0, None)
    rows = rows.with_columns(
        step_of(steps, rows["at"]).alias("step"), ops["name"].gather(op).cast(pl.Int64).alias("name"),
        ops["stack"].gather(op).cast(pl.Int64).fill_null(NONE).alias("stack"), pl.lit(1, pl.Int64).alias("count"),
    ).filter(pl.col("step").is_not_null())  # fmt: skip
    if fetches is not None:  # which kind of loader says more than what came after it
        named = pl.when(pl.col("kind") == "loader").then(pl.lit(fetches, pl.Int64)).otherwise("name")
        rows = rows.with_columns(named.alias("name"))
    return _sums(rows)


def _largest(sums: pl.DataFrame) -> pl.DataFrame:
    """The largest of them, and of the others one for each kind and step."""
    if sums.height <= MOST_CAUSES:
        return sums
    rest = sums[MOST_CAUSES:].with_columns(
        pl.lit(None, pl.Int64).alias("name"), pl.lit(NONE, pl.Int64).alias("stack")
    )
    return _sums(pl.concat([sums[:MOST_CAUSES], rest]))


def _sums(rows: pl.DataFrame) -> pl.DataFrame:
    key = ["step", "kind", "name", "stack"]
    sums = rows.group_by(key).agg(pl.col("count").sum(), pl.col("duration_ns").sum())
    return sums.sort("duration_ns", *key, descending=[True, *[False] * len(key)])
