"""The watts of a steady load, out of the readings of a stretch of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

FEWEST = 8  # readings, below which a mean says nothing of its own spread
_TICKS = 3  # of a counter, in each block

Tables = tuple[pl.DataFrame, pl.DataFrame]  # power and counters
SpanNs = tuple[int, int]


@dataclass(frozen=True)
class SteadyPower:
    """Mean watts over the steady part of a window.

    Attributes:
        watts: the mean, W.
        source: ``counter`` (joules between its ticks) or ``power`` (mean of readings).
        other_w: the same by the other source; None where there is only one.
    """

    watts: float
    source: str
    other_w: float | None = None

    @classmethod
    def together(cls, devices: Sequence[SteadyPower | None]) -> SteadyPower | None:
        """The sum over devices; None when one of them is unknown, or there is none."""
        known = [device for device in devices if device is not None]
        if not known or len(known) < len(devices):
            return None
        others = [device.other_w for device in known if device.other_w is not None]
        return cls(
            sum(device.watts for device in known),
            " and ".join(sorted({device.source for device in known})),
            sum(others) if len(others) == len(known) else None,
        )


def steady_power(power: pl.DataFrame, counters: pl.DataFrame, steady: Sequence[SpanNs]) -> SteadyPower | None:
    """Mean watts of a device while its load was steady; None from too few readings.

    A counter is read from tick to tick: what it gained between two of its own updates, over the time between
    them, whatever moments the stretch began and ended at.

    Args:
        power: schema `POWER`.
        counters: schema `COUNTERS`; empty where the device has none.
        steady: stretches of steady load, ns, by whose beginnings the sensor has forgotten what was before.
    """
    by_counter, by_power = _between_ticks(counters, steady), _mean(power, steady)
    if by_counter is not None:
        return SteadyPower(by_counter, "counter", by_power)
    return None if by_power is None else SteadyPower(by_power, "power")


def _between_ticks(counters: pl.DataFrame, steady: Sequence[SpanNs]) -> float | None:
    joules, seconds = 0.0, 0.0
    ordered = counters.sort("t_ns")
    ticks = ordered.filter((pl.col("joules") != pl.col("joules").shift(1)).fill_null(False))
    for start_ns, end_ns in steady:
        inside = ticks.filter(pl.col("t_ns").is_between(start_ns, end_ns))
        if len(inside) < _TICKS:
            return None
        t_ns, j = inside["t_ns"].to_numpy(), inside["joules"].to_numpy()
        joules += float(j[-1] - j[0])
        seconds += float(t_ns[-1] - t_ns[0]) / 1e9
    return joules / seconds if seconds > 0 else None


def _mean(power: pl.DataFrame, steady: Sequence[SpanNs]) -> float | None:
    """Mean of the blocks' means, each of readings weighted by the time that they speak for."""
    known = power.drop_nulls("watts")
    t_ns, watts = known["t_ns"].to_numpy(), known["watts"].to_numpy()
    weight = known["window_ns"].to_numpy().astype(np.float64)
    means, readings = [], 0
    for start_ns, end_ns in steady:
        inside = (t_ns >= start_ns) & (t_ns <= end_ns)
        if not weight[inside].sum() > 0:
            return None
        readings += int(inside.sum())
        means.append(float(np.average(watts[inside], weights=weight[inside])))
    return float(np.mean(means)) if readings >= FEWEST else None
