"""A device's energy, shared out to what ran on it: kernels, copies, collectives, gaps between them, and idling.

What the device draws when it holds a context and does nothing is a row of its own; what it draws beyond that belongs
to whatever runs. Where several run at once they share by the part of the device that each can hold: the share of SMs
that a kernel's blocks cover, as its record says it; not its occupancy, as a matrix product of few warps fills its SMs.
Where no record says it, an assumption by kind stands in, and for how long it did is a column. How much of the split is
a guess the bounds say: from what something drew alone, to all that was drawn while it ran. All rows together are the
device's energy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from magneton_dist.energy.attribution import Floats, PowerIntegral
from magneton_dist.records.schema import F64, I64, STR, Column, Table
from magneton_dist.timeline.intervals import Bools, Ints, cover

KERNEL_ENERGY = Table("kernel_energy", "what ran on a device under one name, or did not run, and its joules", {
    "kind": Column(STR, "", "kernel, memcpy, memset, collective; gap: captured, nothing ran; uncaptured; idle"),
    "name": Column(STR, "", "of the kernel"),
    "count": Column(I64, "", "how often it ran"),
    "seconds": Column(F64, "s", "summed over all its runs"),
    "joules": Column(F64, "J", "beyond context idle; of row idle: context idle while measured; null unmeasured"),
    "low_j": Column(F64, "J", "of it, drawn while nothing else ran"),
    "high_j": Column(F64, "J", "drawn while it ran, whatever ran beside it"),
    "assumed_s": Column(F64, "s", "of `seconds`, of runs whose share of the SMs is assumed by kind, not recorded"),
})

ENOUGH = 0.99  # of a row's time that must be measured; as of states, joules are those of the measured time

# Stands in where no record says it. NCCL takes up to 32 channels, one SM each, of the 132 of an H100 or H200; what a
# copy draws is its DRAM's.
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
        shares: part of the device that each kind of activity can hold, where its `sm_share` is not known.
        share: part of the device's energy that is this rank's.

    Returns:
        `KERNEL_ENERGY`, most joules first; rows add up to the integral of the power over what was measured of the
        window, but for those that are unmeasured.
    """
    start_ns, end_ns = window_ns
    ran = activities.filter((pl.col("end_ns") > start_ns) & (pl.col("start_ns") < end_ns))
    ran = ran.with_columns(pl.when(pl.col("sm_share") > 0).then("sm_share"))  # what ran holds some of them
    start = np.clip(ran["start_ns"].to_numpy(), start_ns, end_ns)
    end = np.clip(ran["end_ns"].to_numpy(), start_ns, end_ns)
    by_kind = ran["kind"].replace_strict(dict(shares), default=1.0, return_dtype=pl.Float64)
    weight = ran.select(pl.coalesce("sm_share", by_kind)).to_series().to_numpy()
    edges = np.unique(np.concatenate([start, end, np.clip(windows.ravel(), start_ns, end_ns), window_ns]))
    at = edges[:-1]
    integral = PowerIntegral(power)
    seconds = np.diff(edges) / 1e9
    measured_s = integral.measured_s(at, edges[1:])
    beyond = share * (integral.joules(at, edges[1:]) - idle_w * measured_s)
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
        assumed_s=pl.Series((end - start) / 1e9 * ran["sm_share"].is_null().to_numpy()),
        measured_s=pl.Series(during(measured_s)),
    )
    figures = pl.col("seconds", "joules", "low_j", "high_j", "assumed_s", "measured_s").sum()
    schema = {**KERNEL_ENERGY.schema, "measured_s": F64}
    ran_rows = rows.group_by("kind", "name").agg(figures, count=pl.len().cast(I64)).select(*schema)
    inside = cover(windows, at) > 0
    others = [
        ("gap", "nothing ran", *_summed(~busy & inside, seconds, beyond, measured_s)),
        ("uncaptured", "not known what ran", *_summed(~busy & ~inside, seconds, beyond, measured_s)),
        ("idle", "context idle", 1, *_summed(seconds > 0, seconds, share * idle_w * measured_s, measured_s)[1:]),
    ]
    rest = pl.DataFrame(others, schema=schema, orient="row").filter(pl.col("seconds") > 0)
    known = pl.col("measured_s") >= ENOUGH * pl.col("seconds")
    found = pl.concat([ran_rows, rest]).with_columns(pl.when(known).then(pl.col("joules", "low_j", "high_j")))
    return found.drop("measured_s").sort("joules", "seconds", descending=True, nulls_last=True)


def _running(start: Ints, end: Ints, weight: Floats, edges: Ints) -> Floats:
    """(edges - 1,) summed weight of what runs in each piece."""
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, start), weight)
    np.subtract.at(change, np.searchsorted(edges, end), weight)
    return np.cumsum(change)[:-1]


def _summed(which: Bools, seconds: Floats, joules: Floats, measured_s: Floats) -> tuple[float, ...]:
    """Columns of `KERNEL_ENERGY` from count on, and the seconds that were measured."""
    total_j = float(joules[which].sum())
    return int(which.sum()), float(seconds[which].sum()), total_j, total_j, total_j, 0.0, float(measured_s[which].sum())
