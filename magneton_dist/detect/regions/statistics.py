"""Do the two sides of a region cost differently? Over repeats, over ranks, and over the profile's watts.

A difference counts when it is at least `compare.region`, when its interval over the paired repeats excludes
none, and when it is beyond the noise that all regions together show between repeats, at a level shared by all
of them: among hundreds of regions, some differ by chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from magneton_dist.energy.statistics import CONFIDENCE, Ratio
from magneton_dist.matching.arrays import Bools, Floats
from magneton_dist.meters.profile import Profile

LAYOUT = "layout"  # operators of this class draw what an idle device draws


@dataclass(frozen=True, eq=False)
class Ratios:
    """Candidate over baseline of several regions at once; all arrays (regions,).

    Attributes:
        log: mean log ratio; NaN where a side is 0.
        half: half-width of its 95 % interval, infinite from one repeat.
        beyond_noise: the difference exceeds the noise of all regions together, at their common level.
    """

    log: Floats
    half: Floats
    beyond_noise: Bools

    @classmethod
    def of(cls, a: Floats, b: Floats) -> Ratios:
        """From (repeats, regions) of both sides."""
        both = (a > 0).all(axis=0) & (b > 0).all(axis=0)
        log, half = np.full(a.shape[1], np.nan), np.full(a.shape[1], np.inf)
        beyond = np.zeros(a.shape[1], bool)
        if both.any():
            ratio = Ratio.of(b[:, both], a[:, both])
            log[both], half[both] = ratio.mean, ratio.half
            beyond[both] = np.abs(ratio.mean) > _common_noise(a[:, both], b[:, both])
        return cls(log, half, beyond)

    @property
    def differs(self) -> Bools:
        """Told from no difference, whatever its size; never from a single repeat."""
        return np.isfinite(self.half) & (np.abs(self.log) > self.half) & self.beyond_noise


def _common_noise(a: Floats, b: Floats) -> float:
    """What a mean log ratio of any of these regions stays below by chance."""
    repeats, regions = a.shape
    if repeats < 2:
        return 0.0
    pairs = np.log(b / a)
    spread = float(np.sqrt(pairs.var(axis=0, ddof=1).mean()))
    level = 1 - (1 - CONFIDENCE) / 2 / regions
    return float(stats.t.ppf(level, regions * (repeats - 1)) * spread / np.sqrt(repeats))


def classes_of(profile: Profile) -> list[str]:
    """Classes of operators that have watts."""
    return [*profile.operators, LAYOUT]


def ratio_ranges(a: Floats, b: Floats, profile: Profile) -> tuple[Floats, Floats]:
    """Lowest and highest ratio of joules over the range of the classes' watts, relative to the nominal ratio.

    Args:
        a, b: (regions, classes) seconds by class of operator, columns as `classes_of`.
        profile: watts. A ratio is monotone in each class's watts, so its extremes lie at corners.
    """
    idle = profile.watts["context_idle"]
    watts = [*profile.operators.values(), idle]
    used = np.concatenate([a, b]).sum(axis=0)
    ends = [sorted({w.low, w.high}) if s > 0 else [w.nominal] for w, s in zip(watts, used, strict=True)]
    corners = np.array(list(itertools.product(*ends)))
    nominal = np.array([w.nominal for w in watts])
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = ((b @ corners.T) / (a @ corners.T)) / ((b @ nominal) / (a @ nominal))[:, None]
    relative = np.where(np.isfinite(relative), relative, 1.0)
    return relative.min(axis=1), relative.max(axis=1)


@dataclass(frozen=True)
class Spread:
    """Of a difference over ranks: median, median absolute deviation, and the ranks far from the others."""

    median: float
    mad: float
    outliers: list[int]


OUTLIER = 6.0  # robust standard deviations


def spread_over(ranks: Sequence[int], difference: Floats) -> Spread:
    """Spread of (ranks,) `difference`."""
    median = float(np.median(difference))
    off = np.abs(difference - median)
    mad = float(np.median(off))
    limit = max(OUTLIER * 1.4826 * mad, 0.1 * abs(median))
    far = [rank for rank, distance in zip(ranks, off.tolist(), strict=True) if distance > limit]
    return Spread(median, mad, far if len(ranks) > 2 else [])
