"""Do a device's performance monitors agree with what its states say of collectives: waiting, or moving data?

A kernel that waits for a peer spins: it keeps SMs busy and moves nothing over NVLink or from DRAM. The monitors are
means of 100 ms and more, in which a device goes through many states; so what each state moves per second is estimated
from all looks at once, by least squares on how much of each look was spent in which state, with intervals; where that
cannot be, looks that lie wholly within a long wait or transfer speak for themselves. A state about which these leave
open whether it moves data is not corroborated. Nothing here changes a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from magneton_dist.energy.attribution import Floats
from magneton_dist.records.audit import Corroboration
from magneton_dist.timeline.intervals import before

# Less than this is no transfer; an assumption, not measured: an H200 has 900 GB/s of NVLink and 4.8 TB/s of DRAM.
MOVES = {"nvlink_bytes_s": 1e9, "dram": 0.01}
MOVES_SHARE = 0.1  # nor is less than this of what the collectives' busiest state moves
LEAST_SPARE = 20  # looks beyond the states that are told apart
LEAST_WITHIN = 3  # looks wholly within a state, which then need no others to say what it moves: all of them must
_DEVIATES = 2.09  # standard errors of a 95 % interval with so many to spare; with more it is less
_FAINT = 1e-3  # a state, or a difference between two, of less than this of the looks' time is not seen
_CLAIMS = ("wait", "transfer")
_NAMES = {"nvlink_bytes_s": "NVLink", "dram": "DRAM"}


def corroborate(states: pl.DataFrame, monitors: pl.DataFrame) -> dict[str, Corroboration]:
    """What the monitors say of each state ``phase/wait`` and ``phase/transfer`` that occurs.

    Args:
        states: of the rank, `timeline.states.STATES`.
        monitors: of its device, `records.monitors.MONITORS`; the rank has the device for itself.
    """
    spans = {
        f"{phase}/{activity}": rows.select("start_ns", "end_ns").to_numpy()
        for (phase, activity), rows in states.group_by("phase", "activity", maintain_order=True)
    }
    claimed = claims(states)
    if not claimed:
        return {}
    first_ns, last_ns = int(states["start_ns"].min()), int(states["end_ns"].max())  # type: ignore[arg-type]
    looks = monitors.filter((pl.col("start_ns") >= first_ns) & (pl.col("end_ns") <= last_ns))
    told = {name: looks.drop_nulls(name) for name in MOVES if looks[name].drop_nulls().len()}
    if not told:
        return {name: Corroboration("not available", "the monitors told nothing in that time") for name in claimed}
    names = list(spans)
    moved = {monitor: _per_state([spans[name] for name in names], rows, monitor) for monitor, rows in told.items()}
    columns = {name: names.index(name) for name in claimed}
    limits = {
        monitor: max(MOVES[monitor], MOVES_SHARE * max(float(ends[c, 0]) for c in columns.values()))
        for monitor, ends in moved.items()
    }
    found = {}
    for name, column in columns.items():
        known = {m: (float(ends[column, 0]), float(ends[column, 1])) for m, ends in moved.items()}
        known = {monitor: ends for monitor, ends in known.items() if np.isfinite(ends).all()}
        if known:
            found[name] = _judged(name, known, limits)
        else:
            why = f"{max(rows.height for rows in told.values())} looks at the monitors do not tell it from other states"
            found[name] = Corroboration("not available", why)
    return found


def claims(states: pl.DataFrame) -> list[str]:
    """The states ``phase/activity`` of a rank that say of a collective whether it moves data."""
    found = states.filter(pl.col("activity").is_in(_CLAIMS)).select("phase", "activity").unique(maintain_order=True)
    return [f"{phase}/{activity}" for phase, activity in found.iter_rows()]


def _per_state(spans: Sequence[np.ndarray], looks: pl.DataFrame, monitor: str) -> Floats:
    """(states, 2) lower and upper end of what a device in each state shows; infinite where that cannot be told."""
    start, end = looks["start_ns"].to_numpy(), looks["end_ns"].to_numpy()
    share = np.stack([(before(s, end) - before(s, start)) / (end - start) for s in spans], axis=1)
    shown = looks[monitor].to_numpy()
    ends = np.tile([-np.inf, np.inf], (len(spans), 1))
    for state, within in enumerate((share > 1 - _FAINT).T):
        if within.sum() >= LEAST_WITHIN:
            ends[state] = shown[within].min(), shown[within].max()
    if len(shown) < LEAST_SPARE + len(spans):
        return ends
    left, strength, right = np.linalg.svd(share, full_matrices=False)
    told = strength > _FAINT * np.sqrt(len(shown))
    apart = np.square(right[~told]).sum(axis=0) < _FAINT  # of the states: none trades places with what is not told
    mean = (left[:, told].T @ shown / strength[told]) @ right[told]
    variance = float(np.square(shown - share @ mean).sum()) / (len(shown) - told.sum())
    half = _DEVIATES * np.sqrt(variance * np.square(right[told] / strength[told, None]).sum(axis=0))
    ends[apart] = np.stack([mean - half, mean + half], axis=1)[apart]
    return ends


def _judged(state: str, moved: Mapping[str, tuple[float, float]], limits: Mapping[str, float]) -> Corroboration:
    moves = any(low > limits[monitor] for monitor, (low, _) in moved.items())
    rests = all(high < limits[monitor] for monitor, (_, high) in moved.items())
    said = ", ".join(f"{_NAMES[monitor]} {_shown(monitor, *ends)}" for monitor, ends in moved.items())
    if not moves and not rests:
        return Corroboration("not available", f"open whether data move: {said}")
    return Corroboration("agrees" if moves == state.endswith("/transfer") else "contradicts", said)


def _shown(monitor: str, low: float, high: float) -> str:
    scale, unit = (1e9, "GB/s") if monitor == "nvlink_bytes_s" else (0.01, "%")
    return f"{max(0.0, low) / scale:.3g} to {max(0.0, high) / scale:.3g} {unit}"
