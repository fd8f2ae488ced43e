"""Modelled power: device states and a profile's watts become a power table.

A states table is `timeline.states`': start_ns, end_ns, phase, activity; intervals in order, not overlapping.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.schema import POWER

# Activity -> key of a profile's watts. `idle` holds a context, `released` does not.
WATTS_KEYS = {
    "compute": "compute",
    "overlap": "compute",
    "transfer": "transfer",
    "wait": "wait",
    "idle": "context_idle",
    "unresolved": "unresolved",
    "released": "bare_idle",
}


def watt_seconds(states: pl.DataFrame) -> dict[str, float]:
    """Seconds spent at each key of a profile's watts.

    Joules under any watts are the sum of seconds times watts, so a rank's energy can be told anew for every
    corner of a profile without its states.
    """
    _check(states)
    seconds: dict[str, float] = {}
    sums = states.group_by("activity").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    for activity, ns in sums.sort("activity").iter_rows():
        seconds[WATTS_KEYS[activity]] = seconds.get(WATTS_KEYS[activity], 0.0) + ns / 1e9
    return dict(sorted(seconds.items()))


def modelled_power(states: pl.DataFrame, watts: Mapping[str, float], device: str) -> pl.DataFrame:
    """Power table (schema `POWER`, sensor ``modelled``) of one rank: constant over each state.

    Args:
        states: the rank's states; time between two of them is a reading without watts.
        watts: W by key (`Profile.nominal()` or one of `Profile.corners()`).
        device: name written into the table.

    Raises:
        RecordError: states overlap, or have an activity that no profile knows.
    """
    _check(states)
    draws = {activity: watts[key] for activity, key in WATTS_KEYS.items() if key in watts}
    states = states.filter(pl.col("end_ns") > pl.col("start_ns"))
    previous_end = pl.col("end_ns").shift(1)
    intervals = states.select(
        t_ns="end_ns",
        watts=pl.col("activity").replace_strict(draws, return_dtype=pl.Float64),
        window_ns=pl.col("end_ns") - pl.col("start_ns"),
        gap_ns=(pl.col("start_ns") - previous_end).fill_null(0),
    )
    if (intervals["gap_ns"] < 0).any():
        raise RecordError("device states overlap", where=f"states of {device}", do="report this as a defect")
    gaps = intervals.filter(pl.col("gap_ns") > 0).select(
        t_ns=pl.col("t_ns") - pl.col("window_ns"),
        watts=pl.lit(None, pl.Float64),
        window_ns="gap_ns",
    )
    power = intervals.drop("gap_ns")
    if gaps.height:
        power = pl.concat([power, gaps]).sort("t_ns")
    return power.with_columns(device=pl.lit(device), sensor=pl.lit("modelled")).select(*POWER.columns)


def _check(states: pl.DataFrame) -> None:
    unknown = set(states["activity"].unique()) - WATTS_KEYS.keys()
    if unknown:
        what = f"unknown activities: {', '.join(sorted(unknown))}"
        raise RecordError(what, where="device states", do="report this as a defect")
