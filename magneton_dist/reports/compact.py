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

from magneton_dist.energy.attribution import PowerIntegral
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.palette import LOOKS, shown_state
from magneton_dist.timeline.states import ACTIVITIES, PHASES

MAX_INTERVALS = 5_000  # per rank
MAX_READINGS = 800
MAX_STEPS = 2_000
GAP = "-"
_CODES = GAP + "".join(look.code for look in LOOKS)

Codes = NDArray[np.int8]
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


def _cover(states: pl.DataFrame, run: RunBands) -> tuple[Floats, Codes]:
    """Edges in ns since the window's start and the code between each two; gaps filled, repeats merged."""
    states = states if states["start_ns"].is_sorted() else states.sort("start_ns")
    length = run.end_ns - run.start_ns
    start, end = (np.clip(states[name].to_numpy() - run.start_ns, 0, length) for name in ("start_ns", "end_ns"))
    np.maximum.accumulate(np.maximum(end, start, out=end), out=end)
    np.maximum(start[1:], end[:-1], out=start[1:])
    solid = end > start
    start, end, codes = start[solid], end[solid], _codes_of(states)[solid]
    if not len(codes):
        return np.array([0.0, length] if length else [0.0]), np.zeros(1 if length else 0, np.int8)
    gaps = np.flatnonzero(np.append(start, length) > np.append(0, end))  # before the first, between, after the last
    starts = np.insert(start, gaps, np.append(0, end)[gaps])
    codes = np.insert(codes, gaps, 0)
    new = np.append(True, codes[1:] != codes[:-1])
    return np.append(starts[new], length).astype(np.float64), codes[new]


def _codes_of(states: pl.DataFrame) -> Codes:
    """The place in `LOOKS`, from 1, of each state."""
    looks = {look.name: index for index, look in enumerate(LOOKS, start=1)}
    table = np.array([[looks[shown_state(p, a)] for a in ACTIVITIES] for p in PHASES], np.int8)
    codes: Codes = table[states["phase"].to_physical().to_numpy(), states["activity"].to_physical().to_numpy()]
    return codes


def _sliced(edges: Floats, codes: Codes, most: int) -> tuple[Floats, Codes, float]:
    """Equal slices of time, in each the states side by side; the slices' length in µs."""
    present = np.unique(codes)
    slices = max(1, most // len(present))
    grid = np.linspace(edges[0], edges[-1], slices + 1)
    lengths, until = np.diff(edges), np.zeros_like(edges)
    spent = []
    for code in present:
        np.multiply(lengths, codes == code, out=until[1:])
        spent.append(np.diff(np.interp(grid, edges, np.cumsum(until, out=until))))
    durations = np.stack(spent, axis=1).ravel()
    return (
        np.concatenate([[0.0], np.cumsum(durations)]) + edges[0],
        np.tile(present, slices),
        float(grid[1] - grid[0]) / 1e3,
    )


def _power(bands: RankBands, run: RunBands) -> tuple[Floats, Floats]:
    """Edges in ns since the window's start and mean watts between each two; NaN where unknown."""
    power = bands.power
    if not power.height:
        return np.zeros(1), np.zeros(0)
    own = power["device"] == bands.device
    if not own.any():
        own = power["device"] == power["device"].mode().sort().first()
    power = power if own.all(ignore_nulls=False) else power.filter(own)
    length = run.end_ns - run.start_ns
    if power.height > MAX_READINGS:
        integral = PowerIntegral(power)
        grid = np.linspace(0.0, length, MAX_READINGS + 1)
        at = run.start_ns + np.rint(grid).astype(np.int64)
        covered_s, joules = integral.measured_s(at[:-1], at[1:]), integral.joules(at[:-1], at[1:])
        return grid, np.where(covered_s > 0, joules / np.maximum(covered_s, 1e-18), np.nan)
    power = power.sort("t_ns")
    edges = np.append(power["t_ns"][0] - (power["window_ns"][0] or 0), power["t_ns"].to_numpy()) - run.start_ns
    watts = power["watts"].fill_null(float("nan")).to_numpy()
    return np.append(0.0, np.clip(edges, 0, length)), np.append(np.nan, watts)


def _durations(edges: Floats) -> tuple[list[int], NDArray[np.bool_]]:
    """Whole µs between edges, rounded so that they add up, and which of them are longer than none."""
    durations = np.diff(np.rint(edges / 1e3).astype(np.int64))
    keep = durations > 0
    return durations[keep].tolist(), keep
