"""Shares measured where kernels were captured, carried to the steps where they were not.

Outside captured windows the record knows only what collectives tell: wait, transfer, or unresolved. Inside
them both that and the truth are known, so the split of each of the three, by phase, is measured there and
applied to the rest. The result is seconds, not a place in time, and marked as carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.records.schema import BOOL, F64, I64, STR, Column, Table
from magneton_dist.timeline.gpu_states import captured
from magneton_dist.timeline.intervals import Ints, cover, cut
from magneton_dist.timeline.states import rank_states
from magneton_dist.timeline.window import Window

CARRIED = Table("carried", "time in one state within one step, measured or carried", {
    "step": Column(I64, "", "step; null for time outside the steps"),
    "phase": Column(STR, "", "working or finished"),
    "activity": Column(STR, "", "see states"),
    "seconds": Column(F64, "s", "time"),
    "carried": Column(BOOL, "", "its activity is an estimate from the captured windows"),
})


@dataclass(frozen=True)
class Carried:
    """Seconds of a GPU rank's states with the uncaptured steps filled in; they add up to the window."""

    seconds: pl.DataFrame  # CARRIED
    coverage: float  # share of the window, before release, in which kernels were captured


def carry_shares(
    tables: Mapping[str, pl.DataFrame], arrivals: pl.DataFrame, window: Window, device: str
) -> Carried:
    """Fill in what `states.rank_states` leaves open between captured windows.

    A state that the captured windows never show (say, a phase without one) stays as it is, not carried.

    Args:
        tables, arrivals, window, device: as for `states.rank_states`, of a rank with a GPU.
    """
    activities, marks = tables["activities"], tables["marks"]
    windows, whole = captured(marks, activities)
    full = rank_states(tables, arrivals, window, device).states
    blind_tables = {**tables, "activities": activities.clear(), "marks": marks.clear()}
    blind = rank_states(blind_tables, arrivals, window, device).states
    pieces = _pieces(full, blind, tables["steps"], windows[whole], window)

    measured, rest = pieces.filter("seen"), pieces.filter(~pl.col("seen"))
    key = ["phase", "blind"]
    shares = measured.group_by([*key, "activity"]).agg(pl.col("ns").sum().alias("part"))
    shares = shares.select(*key, "activity", (pl.col("part") / pl.col("part").sum().over(key)).alias("share"))
    filled = (
        rest.drop("activity")
        .join(shares, on=key, how="left")
        .with_columns(
            pl.col("share").is_not_null().alias("carried"),
            pl.col("activity").fill_null(pl.col("blind")),
            (pl.col("ns") * pl.col("share").fill_null(1.0)).alias("ns"),
        )
    )
    known = measured.with_columns(pl.col("ns").cast(F64), pl.lit(False).alias("carried"))
    names = ["step", "phase", "activity", "carried", "ns"]
    seconds = (
        pl.concat([known.select(names), filled.select(names)])
        .group_by("step", "phase", "activity", "carried")
        .agg((pl.col("ns").sum() / 1e9).alias("seconds"))
        .select(*CARRIED.schema)
        .sort("step", "phase", "activity", "carried")
    )
    held = int(pieces.filter(pl.col("activity") != "released")["ns"].sum())
    return Carried(seconds, int(measured["ns"].sum()) / held if held else 0.0)


def _pieces(
    full: pl.DataFrame, blind: pl.DataFrame, steps: pl.DataFrame, windows: Ints, window: Window
) -> pl.DataFrame:
    """Cut by states, captured windows and steps: step, phase, activity, blind activity, seen, ns."""
    steps = steps.sort("start_ns")
    begin, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    cuts = cut(
        window.start_ns, window.end_ns, full["start_ns"].to_numpy(), blind["start_ns"].to_numpy(),
        windows.ravel(), begin, end,
    )  # fmt: skip
    at = cuts[:-1]
    nth = np.searchsorted(begin, at, side="right") - 1
    inside = (nth >= 0) & (at < np.append(end, np.iinfo(np.int64).min)[nth])

    def state(states: pl.DataFrame, column: str) -> pl.Series:
        return states[column].gather(np.searchsorted(states["start_ns"].to_numpy(), at, side="right") - 1).cast(STR)

    return pl.DataFrame(
        {
            "step": steps["step"].gather(pl.Series(nth).set(pl.Series(~inside), None)),
            "phase": state(full, "phase"),
            "activity": state(full, "activity"),
            "blind": state(blind, "activity"),
            "seen": cover(windows, at) > 0,
            "ns": np.diff(cuts),
        }
    ).with_columns(pl.col("seen") & (pl.col("activity") != "released"))
