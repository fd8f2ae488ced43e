"""Seconds per state, per step, and per collective and culprit.

Sums are exact: state lengths are integers, and the exposed wait and transfer of the collectives add up to
the wait and transfer of the states, because each such instant is charged to one call, the earliest in flight.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from magneton_dist.records.schema import F64, I32, I64, STR, Column, Table
from magneton_dist.timeline.flights import flights
from magneton_dist.timeline.intervals import Bools, Ints, before
from magneton_dist.timeline.states import derived_name
from magneton_dist.timeline.window import Window

STATE_SECONDS = Table("state_seconds", "time in one state", {
    "phase": Column(STR, "", "working or finished"),
    "activity": Column(STR, "", "see states"),
    "duration_ns": Column(I64, "ns", "summed length"),
    "seconds": Column(F64, "s", "the same in seconds"),
})

STEP_SECONDS = Table("step_seconds", "time in one state within one step", {
    "step": Column(I64, "", "step; null for time outside the steps"),
    **STATE_SECONDS.columns,
})

WAITS = Table("waits", "calls of one rank that share group, operation, origin, stack, culprit and phase", {
    "group": Column(STR, "", "process group name"),
    "op": Column(STR, "", "c10d operator"),
    "origin": Column(STR, "", "origin"),
    "stack_id": Column(I64, "", "stack of the call"),
    "culprit": Column(I32, "", "global rank waited for; null when nobody can be named"),
    "phase": Column(STR, "", "working or finished, at the call's start"),
    "count": Column(I64, "", "calls that began in the window"),
    "refused": Column(I64, "", "calls among them without a known wait"),
    "wait_s": Column(F64, "s", "before the last arrival, also where other work ran beside it"),
    "transfer_s": Column(F64, "s", "after it, likewise"),
    "wait_error_s": Column(F64, "s", "bound on the error of wait_s"),
    "exposed_wait_s": Column(F64, "s", "part of the state `wait` charged to these calls"),
    "exposed_transfer_s": Column(F64, "s", "part of the state `transfer` charged to these calls"),
    "bytes": Column(I64, "bytes", "payload"),
    "zero_count": Column(I64, "", "calls whose payload was all zeros"),
    "zero_bytes": Column(I64, "bytes", "their payload"),
    "shadow_peers": Column(I64, "", "calls in which some member was a Join shadow"),
    "first_step": Column(I64, "", "step of the first call"),
    "last_step": Column(I64, "", "step of the last call"),
})

STATE = ["phase", "activity"]
CALL = ["group", "op", "origin", "stack_id", "culprit", "phase"]


def state_seconds(states: pl.DataFrame) -> pl.DataFrame:
    """Sum a states table per phase and activity (schema `STATE_SECONDS`)."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("duration_ns")
    sums = states.group_by(STATE, maintain_order=True).agg(length)
    return sums.with_columns(pl.col(STATE).cast(STR), (pl.col("duration_ns") / 1e9).alias("seconds"))


def derived_seconds(states: pl.DataFrame) -> dict[str, float]:
    """Seconds by the names of reports: the working activities, unresolved, shadow, done and released."""
    sums: dict[str, float] = {}
    for phase, activity, _, seconds in state_seconds(states).iter_rows():
        name = derived_name(phase, activity)
        sums[name] = sums.get(name, 0.0) + seconds
    return sums


def step_seconds(states: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Sum a states table per step, phase and activity (schema `STEP_SECONDS`); steps do not overlap."""
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    parts = []
    for (phase, activity), rows in states.group_by(STATE, maintain_order=True):
        spans = rows.select("start_ns", "end_ns").to_numpy()
        inside = before(spans, end) - before(spans, start)
        outside = int((spans[:, 1] - spans[:, 0]).sum() - inside.sum())
        part = pl.DataFrame(
            {"step": [*steps["step"], None], "duration_ns": np.append(inside, outside)},
            schema={"step": pl.Int64, "duration_ns": pl.Int64},
        ).filter(pl.col("duration_ns") > 0)
        parts.append(part.with_columns(pl.lit(phase).alias("phase"), pl.lit(activity).alias("activity")))
    if not parts:
        return STEP_SECONDS.empty()
    seconds = (pl.col("duration_ns") / 1e9).alias("seconds")
    return pl.concat(parts).with_columns(seconds).select(*STEP_SECONDS.schema).sort("step", *STATE)


def waits(
    collectives: pl.DataFrame, arrivals: pl.DataFrame, states: pl.DataFrame, window: Window
) -> pl.DataFrame:
    """Sum a rank's collectives per group, operation, origin, stack, culprit and phase (schema `WAITS`).

    A call counts where it starts; a call from before the window brings only its exposed time inside it.

    Args:
        collectives, arrivals: the rank's tables; times on the rank's own clock.
        states: `states.rank_states`.
        window: the rank's.
    """
    calls = flights(collectives, arrivals)
    exposed = pl.DataFrame(
        {
            "call_id": calls.call_id,
            "exposed_wait": _charged(states, "wait", calls.start, calls.arrive, calls.known),
            "exposed_transfer": _charged(states, "transfer", calls.arrive, calls.end, calls.known),
        },
        schema={"call_id": I64, "exposed_wait": I64, "exposed_transfer": I64},
    )
    finished = window.end_ns if window.finished_ns is None else window.finished_ns
    inside = pl.col("start_ns").is_between(window.start_ns, window.end_ns, closed="left")
    zero = pl.col("zero_payload").fill_null(False) & inside
    phase = pl.when(pl.col("start_ns") >= finished).then(pl.lit("finished")).otherwise(pl.lit("working"))
    joined = arrivals.select(
        "call_id", "culprit", "method", "wait_ns", "transfer_ns", "wait_error_ns", "shadow_peer"
    )

    def seconds(name: str, rows: pl.Expr | None = None) -> pl.Expr:
        column = pl.col(name) if rows is None else pl.col(name).filter(rows)
        return column.sum() / 1e9

    return (
        collectives.join(exposed, on="call_id", how="left")
        .join(joined, on="call_id", how="left")
        .filter(inside | (pl.col("exposed_wait") + pl.col("exposed_transfer") > 0).fill_null(False))
        .with_columns(phase.alias("phase"))
        .group_by(CALL, maintain_order=True)
        .agg(
            inside.sum().cast(pl.Int64).alias("count"),
            (inside & (pl.col("method").fill_null("none") == "none")).sum().cast(pl.Int64).alias("refused"),
            seconds("wait_ns", inside).alias("wait_s"),
            seconds("transfer_ns", inside).alias("transfer_s"),
            seconds("wait_error_ns", inside).alias("wait_error_s"),
            seconds("exposed_wait").alias("exposed_wait_s"),
            seconds("exposed_transfer").alias("exposed_transfer_s"),
            pl.col("bytes").filter(inside).sum(),
            zero.sum().cast(pl.Int64).alias("zero_count"),
            pl.col("bytes").filter(zero).sum().alias("zero_bytes"),
            (pl.col("shadow_peer").fill_null(False) & inside).sum().cast(pl.Int64).alias("shadow_peers"),
            pl.col("step").min().alias("first_step"),
            pl.col("step").max().alias("last_step"),
        )
        .select(*WAITS.schema)
    )


def _charged(states: pl.DataFrame, activity: str, start: Ints, end: Ints, known: Bools) -> Ints:
    """Nanoseconds of the states with this activity that each call answers for: the earliest not ended."""
    spans = states.filter(pl.col("activity") == activity).select("start_ns", "end_ns").to_numpy()
    row = np.flatnonzero(known & (end > start))
    row = row[np.argsort(start[row], kind="stable")]
    # Sorted by start, a call is in charge from when the ones before it have all ended until it ends itself.
    ends = np.maximum.accumulate(end[row])
    begins = np.concatenate([[np.iinfo(np.int64).min], ends[:-1]])[: len(row)]
    charged = np.zeros(len(start), np.int64)
    charged[row] = before(spans, ends) - before(spans, np.maximum(begins, start[row]).clip(max=ends))
    return charged
