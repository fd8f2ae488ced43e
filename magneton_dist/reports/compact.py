"""State bands and power of a run, small enough for a page.

Bands become durations in µs and one letter per interval. A rank with too many intervals is cut into equal
slices of time; within a slice the states are put side by side in a fixed order, so that the seconds of every
state stay exact and only their order inside a slice is lost.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.palette import LOOKS, shown_state

MAX_INTERVALS = 5_000  # per rank
MAX_READINGS = 800
MAX_STEPS = 2_000
GAP = "-"
_CODES = GAP + "".join(look.code for look in LOOKS)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class CompactRank(TypedDict):
    """One rank as the page's script reads it.

    us: durations of consecutive intervals from the window's start, µs; codes: one letter of `palette` for
    each, ``-`` where nothing is recorded; slice_us: length of a slice of time within which order is lost, 0
    when nothing is; power_us, watts: durations of consecutive readings and their mean watts, None where
    unknown; steps_us, steps: starts of steps, µs, and their numbers.
    """

    rank: int
    us: list[int]
    codes: str
    slice_us: float
    power_us: list[int]
    watts: list[float | None]
    steps_us: list[int]
    steps: list[int]


def compact_rank(run: RunBands, rank: int, most: int = MAX_INTERVALS) -> CompactRank:
    """One rank of `run` with at most `most` intervals."""
    bands = run.ranks[rank]
    edges, codes = _cover(bands.states, run)
    slice_us = 0.0
    if len(codes) > most:
        edges, codes, slice_us = _sliced(edges, codes, most)
    us, keep = _durations(edges)
    power_edges, watts = _power(bands, run)
    power_us, known = _durations(power_edges)
    steps = bands.steps.filter(pl.col("start_ns").is_between(run.start_ns, run.end_ns)).sort("start_ns")
    steps = steps.gather_every(max(1, -(-steps.height // MAX_STEPS)))
    return {
        "rank": rank,
        "us": us,
        "codes": "".join(_CODES[code] for code in codes[keep]),
        "slice_us": slice_us,
        "power_us": power_us,
        "watts": [None if np.isnan(w) else round(float(w), 1) for w in watts[known]],
        "steps_us": ((steps["start_ns"] - run.start_ns) // 1_000).to_list(),
        "steps": steps["step"].to_list(),
    }


def _cover(states: pl.DataFrame, run: RunBands) -> tuple[Floats, Ints]:
    """Edges in ns since the window's start and the code between each two; gaps filled, repeats merged."""
    states = states.sort("start_ns")
    pairs = states.select("phase", "activity").unique()
    looks = {look.name: index for index, look in enumerate(LOOKS, start=1)}
    code = pl.Series([looks[shown_state(*row)] for row in pairs.iter_rows()], dtype=pl.Int64)
    known = states.join(pairs.with_columns(code=code), on=["phase", "activity"], maintain_order="left")
    length = run.end_ns - run.start_ns
    start = np.clip(known["start_ns"].to_numpy() - run.start_ns, 0, length)
    end = np.clip(known["end_ns"].to_numpy() - run.start_ns, start, length)
    # each interval opens at its start and leaves a gap at its end; an edge of no length is dropped below
    edges = np.concatenate([[0], np.stack([start, end], axis=1).ravel(), [length]])
    codes = np.concatenate([[0], np.stack([known["code"].to_numpy(), np.zeros_like(start)], axis=1).ravel()])
    edges = np.maximum.accumulate(edges)
    solid = np.diff(edges) > 0
    starts, codes = edges[:-1][solid], codes[solid]
    new = np.concatenate([[True], codes[1:] != codes[:-1]]) if len(codes) else np.zeros(0, dtype=bool)
    return np.concatenate([starts[new], [length]]).astype(np.float64), codes[new]


def _sliced(edges: Floats, codes: Ints, most: int) -> tuple[Floats, Ints, float]:
    """Equal slices of time, in each the states side by side; the slices' length in µs."""
    present = np.unique(codes)
    slices = max(1, most // len(present))
    grid = np.linspace(edges[0], edges[-1], slices + 1)
    spent = [
        np.diff(np.interp(grid, edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * (codes == code))])))
        for code in present
    ]
    durations = np.stack(spent, axis=1).ravel()
    return (
        np.concatenate([[0.0], np.cumsum(durations)]) + edges[0],
        np.tile(present, slices),
        float(grid[1] - grid[0]) / 1e3,
    )


def _power(bands: RankBands, run: RunBands) -> tuple[Floats, Floats]:
    """Edges in ns since the window's start and mean watts between each two; NaN where unknown."""
    if not bands.power.height:
        return np.zeros(1), np.zeros(0)
    power = bands.power.sort("t_ns")
    own = power.filter(pl.col("device") == bands.device)
    power = own if own.height else power.filter(pl.col("device") == power["device"].mode().sort().first())
    first = power["t_ns"][0] - (power["window_ns"][0] or 0)
    edges = np.concatenate([[first], power["t_ns"].to_numpy()]).astype(np.float64) - run.start_ns
    watts = power["watts"].fill_null(float("nan")).to_numpy()
    length = float(run.end_ns - run.start_ns)
    if len(watts) <= MAX_READINGS:
        grid = np.clip(edges, 0.0, length)
        return np.concatenate([[0.0], grid]), np.concatenate([[np.nan], watts])
    grid = np.linspace(0.0, length, MAX_READINGS + 1)
    known = ~np.isnan(watts)
    spans = np.diff(edges)
    joules = np.concatenate([[0.0], np.cumsum(np.where(known, watts, 0.0) * spans)])
    seconds = np.concatenate([[0.0], np.cumsum(np.where(known, spans, 0.0))])
    covered = np.diff(np.interp(grid, edges, seconds))
    spent = np.diff(np.interp(grid, edges, joules))
    return grid, np.where(covered > 0, spent / np.maximum(covered, 1e-9), np.nan)


def _durations(edges: Floats) -> tuple[list[int], NDArray[np.bool_]]:
    """Whole µs between edges, rounded so that they add up, and which of them are longer than none."""
    durations = np.diff(np.rint(edges / 1e3).astype(np.int64))
    keep = durations > 0
    return durations[keep].tolist(), keep
