"""A device's energy, shared out to what ran on it: kernels, copies, collectives, gaps between them, and idling.

What the device draws when it holds a context and does nothing is a row of its own; what it draws beyond that belongs
to whatever runs. Where several run at once they share by the part of the device that each can hold: a collective's
kernel holds as many SMs as it has channels, a copy holds none. How much of that is assumption the bounds say: from
what something drew alone, to all that was drawn while it ran. All rows together are the device's energy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from magneton_dist.energy.attribution import Floats, PowerIntegral
from magneton_dist.records.schema import F64, I64, STR, Column, Table
from magneton_dist.timeline.intervals import Ints, cover

KERNEL_ENERGY = Table("kernel_energy", "what ran on a device under one name, or did not run, and its joules", {
    "kind": Column(STR, "", "kernel, memcpy, memset, collective; gap: captured, nothing ran; uncaptured; idle"),
    "name": Column(STR, "", "of the kernel"),
    "count": Column(I64, "", "how often it ran"),
    "seconds": Column(F64, "s", "summed over all its runs"),
    "joules": Column(F64, "J", "beyond context idle; of row idle: context idle while measured; null unmeasured"),
    "low_j": Column(F64, "J", "of it, drawn while nothing else ran"),
    "high_j": Column(F64, "J", "drawn while it ran, whatever ran beside it"),
})

# NCCL takes up to 32 channels, one SM each, of the 132 of an H100 or H200 (energy of a copy is its DRAM's).
SM_SHARES: Mapping[str, float] = {"kernel": 1.0, "collective": 32 / 132, "memcpy": 0.05, "memset": 0.05}


def kernel_energy(
    activities: pl.DataFrame, power: pl.DataFrame, windows: Ints, window_ns: tuple[int, int], idle_w: float,
    shares: Mapping[str, float] = SM_SHARES, share: float = 1.0,
) -> pl.DataFrame:
    """Share out the energy of one device over one window.

    Args:
        activities: of the device, schema `ACTIVITIES`.
        power: its readings, schema `POWER`.
        windows: where all that ran was captured, shape (n, 2), ns; see `timeline.gpu_states.captured`.
        window_ns: start and end of what is accounted for.
        idle_w: what it draws when it holds a context and idles, W.
        shares: part of the device that each kind of activity can hold.
        share: part of the device's energy that is this rank's.

    Returns:
        `KERNEL_ENERGY`, most joules first; rows add up to the integral of the power over the window.
    """
    start_ns, end_ns = window_ns
    ran = activities.filter((pl.col("end_ns") > start_ns) & (pl.col("start_ns") < end_ns))
    start = np.clip(ran["start_ns"].to_numpy(), start_ns, end_ns)
    end = np.clip(ran["end_ns"].to_numpy(), start_ns, end_ns)
    weight = ran["kind"].replace_strict(dict(shares), default=1.0, return_dtype=pl.Float64).to_numpy()
    edges = np.unique(np.concatenate([start, end, np.clip(windows.ravel(), start_ns, end_ns), window_ns]))
    at = edges[:-1]
    integral = PowerIntegral(power)
    seconds = np.diff(edges) / 1e9
    measured = integral.measured_s(at, edges[1:]) >= seconds * 0.99
    beyond = share * (integral.joules(at, edges[1:]) - idle_w * seconds)
    beyond = np.where(measured, beyond, np.nan)
    resident, together = _running(start, end, np.ones(len(start)), edges), _running(start, end, weight, edges)
    busy = resident > 0.5

    first, last = np.searchsorted(edges, start), np.searchsorted(edges, end)

    def during(per_piece: Floats) -> Floats:
        """(activities,) sum over the pieces in which each ran."""
        total = np.concatenate([[0.0], np.cumsum(per_piece)])
        return np.asarray(total[last] - total[first])

    held = np.where(busy, beyond / np.where(busy, together, 1.0), 0.0)
    rows = ran.select("kind", "name").with_columns(
        seconds=pl.Series((end - start) / 1e9),
        joules=pl.Series(weight * during(held)),
        low_j=pl.Series(during(np.where(busy & (resident < 1.5), beyond, 0.0))),
        high_j=pl.Series(during(np.where(busy, beyond, 0.0))),
    )
    figures = pl.col("seconds", "joules", "low_j", "high_j").sum()
    ran_rows = rows.group_by("kind", "name").agg(figures, count=pl.len().cast(I64)).select(*KERNEL_ENERGY.columns)
    inside = cover(windows, at) > 0
    idle_j = share * idle_w * float(seconds[measured].sum()) if measured.any() else None
    others = [
        _row("gap", "nothing ran", seconds[~busy & inside], beyond[~busy & inside]),
        _row("uncaptured", "not known what ran", seconds[~busy & ~inside], beyond[~busy & ~inside]),
        ("idle", "context idle", 1, (end_ns - start_ns) / 1e9, *[idle_j] * 3),
    ]
    rest = pl.DataFrame(others, schema=KERNEL_ENERGY.schema, orient="row").filter(pl.col("seconds") > 0)
    found = pl.concat([ran_rows, rest]).with_columns(pl.col("joules", "low_j", "high_j").fill_nan(None))
    return found.sort("joules", "seconds", descending=True, nulls_last=True)


def _running(start: Ints, end: Ints, weight: Floats, edges: Ints) -> Floats:
    """(edges - 1,) summed weight of what runs in each piece."""
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, start), weight)
    np.subtract.at(change, np.searchsorted(edges, end), weight)
    return np.cumsum(change)[:-1]


def _row(kind: str, name: str, seconds: Floats, joules: Floats) -> tuple[object, ...]:
    total = float(joules.sum())
    return kind, name, len(seconds), float(seconds.sum()), total, total, total
