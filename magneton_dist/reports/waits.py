"""Who waited for whom, in which collective: ranks by collectives, and the culprits.

Collectives stand in the order of their last arrivals; when there are more than a page has room for, neighbours
share a column. Seconds are all of a call before its last arrival, also where other work ran beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from magneton_dist.reports.bands import RunBands
from magneton_dist.reports.charts import Values
from magneton_dist.reports.figures import one_line, quantity

MAX_COLUMNS = 240
MAX_ROWS = 256
MOST_CULPRITS, MOST_CALLS = 12, 20
LEAST_SHARE = 1e-5  # of the ranks' time in waits: less is how well ends and starts agree
_HEIGHT, _LEAST, _MOST = 440, 3, 22  # of the chart and of one rank, in pixels


def wait_charts(runs: Sequence[RunBands]) -> tuple[list[Values], list[Values]]:
    """What the page's template lays out, and what its script draws, for each run in which somebody waited."""
    laid_out, drawn = [], []
    for run in runs:
        waits = _waits(run)
        rank_ns = len(run.ranks) * (run.end_ns - run.start_ns)
        if not waits.height or waits["wait_ns"].sum() <= LEAST_SHARE * rank_ns:
            continue
        column = _columns(waits)
        waits = waits.join(column.select("key", "column"), on="key")
        totals = waits.group_by("rank").agg(pl.col("wait_ns").sum()).sort("wait_ns", "rank", descending=[True, False])
        rows = sorted(totals["rank"].head(MAX_ROWS).to_list())
        cells = _cells(waits, rows, int(column["column"].to_numpy().max()) + 1)
        names = [_column_values(of_column, run) for (_,), of_column in column.group_by("column", maintain_order=True)]
        height = int(np.clip(_HEIGHT // len(rows), _LEAST, _MOST))
        drawn.append({"ranks": rows, "columns": names, "us": cells, "row_px": height})
        laid_out.append({
            "variant": one_line(run.variant, 120), "height": height * len(rows) + 26,
            "hidden": totals.height - len(rows), "calls": f"{column.height:,}", "shared": column.height > MAX_COLUMNS,
            "culprits": _culprits(waits), "longest": _longest(column, run),
            "words": f"{len(rows)} ranks by {column.height:,} collectives; the figures are in the table below",
        })  # fmt: skip
    return laid_out, drawn


def _waits(run: RunBands) -> pl.DataFrame:
    """One row per joined call: rank, key, culprit, wait_ns, at (last arrival, ns since the window's start), what."""
    parts = []
    for rank, bands in run.ranks.items():
        calls = bands.collectives.select("call_id", "group", "op", "origin", "step")
        joined = bands.arrivals.filter(pl.col("key").is_not_null() & (pl.col("method") != "none"))
        parts.append(joined.join(calls, on="call_id").select(
            pl.lit(rank, pl.Int64).alias("rank"), "key", "culprit", pl.col("wait_ns").fill_null(0),
            (pl.col("last_arrival_ns") - run.start_ns).alias("at"), "group", "op", "origin", "step",
        ))  # fmt: skip
    rows = pl.concat(parts) if parts else pl.DataFrame(schema={"wait_ns": pl.Int64, "at": pl.Int64})
    return rows.filter(pl.col("at").is_between(0, run.end_ns - run.start_ns))


def _columns(waits: pl.DataFrame) -> pl.DataFrame:
    """One row per collective in order of time, with the column that it is drawn in."""
    collectives = waits.group_by("key").agg(
        pl.col("at").max(), pl.col("wait_ns").sum(), pl.col("op", "group", "origin").first(), pl.col("step").min(),
        pl.col("culprit").drop_nulls().mode().sort().first(), pl.len().alias("ranks"),
    ).sort("at", "key")  # fmt: skip
    share = max(1.0, collectives.height / MAX_COLUMNS)
    return collectives.with_columns(pl.Series("column", np.arange(collectives.height) // share, pl.Int64))


def _cells(waits: pl.DataFrame, rows: Sequence[int], columns: int) -> list[list[int]]:
    """(ranks, columns) µs of waiting."""
    sums = waits.filter(pl.col("rank").is_in(list(rows))).group_by("rank", "column").agg(pl.col("wait_ns").sum())
    cells = np.zeros((len(rows), columns), np.int64)
    row = np.searchsorted(np.array(rows), sums["rank"].to_numpy())
    cells[row, sums["column"].to_numpy()] = np.rint(sums["wait_ns"].to_numpy() / 1e3)
    found: list[list[int]] = cells.tolist()
    return found


def _column_values(collectives: pl.DataFrame, run: RunBands) -> Values:
    worst = collectives.sort("wait_ns", "at", descending=[True, False]).row(0, named=True)
    more = f" and {collectives.height - 1} more" if collectives.height > 1 else ""
    return {
        "at_us": int(collectives["at"][0]) // 1_000, "culprit": worst["culprit"],
        "what": f"{one_line(str(worst['op']), 40)} ({one_line(str(worst['origin']), 20)}){more}", "step": worst["step"],
    }  # fmt: skip


def _culprits(waits: pl.DataFrame) -> list[Values]:
    """The ranks that others waited for longest."""
    blamed = waits.filter(pl.col("culprit").is_not_null() & (pl.col("culprit") != pl.col("rank")))
    sums = blamed.group_by("culprit").agg(
        pl.col("wait_ns").sum(), pl.col("key").n_unique().alias("calls"), pl.col("rank").n_unique().alias("waiting")
    ).sort("wait_ns", "culprit", descending=[True, False])  # fmt: skip
    calls = max(1, blamed["key"].n_unique())
    longest = max([1, *sums["wait_ns"].head(1)])
    return [
        {
            "rank": int(rank), "width": round(100 * ns / longest, 2), "waited": quantity(ns / 1e9, "s", 3),
            "detail": f"last in {count:,} of {calls:,}", "words": f"{waiting:,} ranks waited",
        }
        for rank, ns, count, waiting in sums.head(MOST_CULPRITS).iter_rows()
    ]  # fmt: skip


def _longest(collectives: pl.DataFrame, run: RunBands) -> list[Values]:
    """The collectives with the longest waits, of all ranks together."""
    longest = collectives.sort("wait_ns", "at", descending=[True, False]).head(MOST_CALLS)
    return [
        {
            "at": quantity(row["at"] / 1e9, "s"), "op": one_line(str(row["op"]), 60),
            "group": one_line(str(row["group"] or "unknown"), 60), "origin": one_line(str(row["origin"]), 40),
            "step": "" if row["step"] is None else f"{row['step']:,}", "ranks": row["ranks"],
            "culprit": "nobody can be named" if row["culprit"] is None else f"rank {row['culprit']}",
            "waited": quantity(row["wait_ns"] / 1e9, "s", 3),
        }
        for row in longest.iter_rows(named=True)
    ]  # fmt: skip
