"""Intervals of means and of paired ratios, and the noise between runs of one variant.

Repeat i of the baseline and of the candidate ran next to each other, so what is averaged is the log ratio of
each such pair: drift of the machine cancels. Intervals are 95 %, by Student's t over the repeats.

**Noise** is the relative standard deviation between runs of the same variant, pooled over the two variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from magneton_dist.energy.attribution import Floats
from magneton_dist.records.audit import Interval

CONFIDENCE = 0.95


def mean_interval(values: Sequence[float] | Floats) -> Interval:
    """Mean of independent values and its 95 % interval; no interval from fewer than two."""
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean)
    half = float(_half_width(sample.std(ddof=1), len(sample)))
    return Interval(mean, (mean - half, mean + half))


@dataclass(frozen=True)
class Ratio:
    """Paired ratios as logs. One column per assumption (the profile's watts), the first one nominal.

    Attributes:
        mean: mean log ratio, shape (columns,).
        half: half-width of its 95 % interval; infinite from a single pair.
        safe_half: the same, with the spread of the pairs not taken below what the noise alone would give.
        noise: relative standard deviation between runs of one variant.
    """

    mean: Floats
    half: Floats
    safe_half: Floats
    noise: Floats

    @classmethod
    def of(cls, numerator: Floats, denominator: Floats) -> Ratio:
        """From arrays of positive values, shape (repeats,) or (repeats, columns); row i pairs with row i."""
        top, bottom = (np.log(side.reshape(len(side), -1)) for side in (numerator, denominator))
        pairs = top - bottom
        mean, repeats = pairs.mean(axis=0), len(pairs)
        if repeats < 2:
            unknown = np.full(mean.shape, np.inf)
            return cls(mean, unknown, unknown, unknown)
        noise = np.sqrt((top.var(axis=0, ddof=1) + bottom.var(axis=0, ddof=1)) / 2)
        spread = pairs.std(axis=0, ddof=1)
        safe_spread = np.maximum(spread, np.sqrt(2) * noise)
        return cls(mean, _half_width(spread, repeats), _half_width(safe_spread, repeats), noise)

    def nominal(self) -> Ratio:
        """The first assumption alone."""
        return Ratio(self.mean[:1], self.half[:1], self.safe_half[:1], self.noise[:1])

    def inverse(self) -> Ratio:
        """Denominator over numerator."""
        return replace(self, mean=-self.mean)

    def interval(self) -> Interval:
        """The nominal ratio (geometric mean) with its interval."""
        mean, half = float(self.mean[0]), float(self.half[0])
        ends = (float(np.exp(mean - half)), float(np.exp(mean + half))) if np.isfinite(half) else None
        return Interval(float(np.exp(mean)), ends)

    def range(self) -> tuple[float, float] | None:
        """Smallest and largest ratio over all assumptions; None when there is only one."""
        if len(self.mean) == 1:
            return None
        return float(np.exp(self.mean.min())), float(np.exp(self.mean.max()))


def _half_width(spread: Floats, repeats: int) -> Floats:
    return np.asarray(stats.t.ppf((1 + CONFIDENCE) / 2, repeats - 1) * spread / np.sqrt(repeats))
