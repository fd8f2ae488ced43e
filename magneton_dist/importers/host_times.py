"""What the host did while the device idled: from launches, the loader's annotations and the runtime's calls.

The device idles from the end of all that ran before to the start of what runs next. Until that was launched the
host is to blame, and within it the loader where the host was fetching data; what is left is between launch and
start.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.importers.columns import NONE
from magneton_dist.timeline.intervals import before, intervals, union

Ints = NDArray[np.int64]

MOST_CAUSES = 300  # rows of a rank; the smallest are put together by kind and step


def idle_times(device: pl.DataFrame, op: Ints, loader: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The stretches in which the device idled within the steps, by cause.

    Args:
        device: all activities, sorted by start, with `issue_ns` (null: unknown).
        op: of each activity the row of the operator that launched it, -1 where none is known.
        loader: start_ns and end_ns of the loader's work.
        steps: `STEPS`, sorted by start.

    Returns:
        kind, op, at (end of the stretch, ns), duration_ns.
    """
    start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
    opens = int(steps["start_ns"].to_numpy().min())
    busy_until = np.maximum.accumulate(np.concatenate([[opens], end]))[:-1]
    row = np.flatnonzero((start > busy_until) & (start > opens))
    begin, until = np.maximum(busy_until[row], opens), start[row]
    issue = device["issue_ns"].fill_null(NONE).to_numpy()[row]
    launched = np.clip(np.where(issue == NONE, begin, issue), begin, until)
    fetching = union(intervals(loader["start_ns"].to_numpy(), loader["end_ns"].to_numpy()))
    loading = before(fetching, launched) - before(fetching, begin) if len(fetching) else np.zeros(len(row), np.int64)
    known = issue != NONE
    parts = {
        "loader": loading * known,
        "host": (launched - begin - loading) * known,
        "launch": (until - launched) * known,
        "unknown": (until - begin) * ~known,
    }
    duration = np.concatenate(list(parts.values()))
    kept = np.flatnonzero(duration > 0)
    of_row = kept % max(1, len(row))
    return pl.DataFrame({
        "kind": pl.Series(list(parts)).gather(kept // max(1, len(row))), "op": op[row][of_row].astype(np.int64),
        "at": until[of_row] - 1, "duration_ns": duration[kept],
    })  # fmt: skip


def synchronised(calls: pl.DataFrame, op: Ints) -> pl.DataFrame:
    """The runtime's calls that wait for the device, in the form of `idle_times`."""
    return calls.select(
        pl.lit("sync").alias("kind"), pl.Series("op", op, pl.Int64), pl.col("start_ns").alias("at"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
    )  # fmt: skip


def summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Sums over step, kind, name and stack (numbers of the trace) of such rows, with those as columns besides."""
    key = ["step", "kind", "name", "stack"]
    sums = _sums(rows.with_columns(pl.lit(1, pl.Int64).alias("count")), key)
    if sums.height > MOST_CAUSES:
        rest = sums[MOST_CAUSES:].with_columns(
            pl.lit(None, pl.Int64).alias("name"), pl.lit(NONE, pl.Int64).alias("stack")
        )
        sums = _sums(pl.concat([sums[:MOST_CAUSES], rest]), key)
    return sums


def _sums(rows: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    sums = rows.group_by(key).agg(pl.col("count").sum(), pl.col("duration_ns").sum())
    return sums.sort("duration_ns", *key, descending=[True, *[False] * len(key)])
