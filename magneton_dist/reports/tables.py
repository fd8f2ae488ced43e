"""Tables of one run for a spreadsheet: every collective call with its wait, and the states of every rank.

Times are s since the start of the audited window, on the coordinator's clock.
"""

from __future__ import annotations

import polars as pl

from magneton_dist.reports.bands import RunBands


def wait_table(run: RunBands) -> pl.DataFrame:
    """One row per call: what it was, how long it waited for whom, and why that is not known where it is not."""
    parts = []
    for rank, bands in sorted(run.ranks.items()):
        joined = bands.collectives.join(
            bands.arrivals.select(
                "call_id", "method", "reason", "culprit", "last_rank", "wait_ns", "wait_error_ns", "transfer_ns"
            ),
            on="call_id", how="left",
        ).sort("call_id")  # fmt: skip
        parts.append(joined.select(
            pl.lit(rank).alias("rank"), "call_id", "step", "group", "group_size", "seq", "op", "origin", "bytes",
            "dtype", _since(run, "issue_ns"), _since(run, "start_ns"), _since(run, "end_ns"), _seconds("wait_ns"),
            _seconds("wait_error_ns"), _seconds("transfer_ns"), "culprit", "last_rank", "method", "reason",
        ))  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame()


def state_table(run: RunBands) -> pl.DataFrame:
    """One row per stretch of time of a rank's device in one state."""
    parts = [
        bands.states.sort("start_ns").select(
            pl.lit(rank).alias("rank"), _since(run, "start_ns"), _since(run, "end_ns"), "phase", "activity"
        )
        for rank, bands in sorted(run.ranks.items())
    ]
    return pl.concat(parts) if parts else pl.DataFrame()


def csv(table: pl.DataFrame) -> bytes:
    """A table as CSV. Its texts come from the audited job: what a terminal could obey is replaced, and line breaks."""
    texts = pl.col(pl.String).str.replace_all(r"[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]", "\ufffd")
    return table.with_columns(texts).write_csv().encode()


def _since(run: RunBands, name: str) -> pl.Expr:
    return ((pl.col(name) - run.start_ns) / 1e9).alias(name.replace("_ns", "_s"))


def _seconds(name: str) -> pl.Expr:
    return (pl.col(name) / 1e9).alias(name.replace("_ns", "_s"))
