"""One variant against another: waste, no difference within x %, trade-off, or inconclusive.

What follows says energy; `compare.by` puts time or the memory of a step's peak in its place. By values, variants
that agree are no different and others are a trade-off.

**Energy differs** when even the near end of its interval lies beyond the noise (or beyond `compare.total`, if
that is a number). For this decision the spread of the pairs is not taken below what the noise alone would
give: a few pairs that happen to agree are no proof of a quiet machine. Four repeats of one variant against
four of the same, normal noise, are told apart in 0.3 % of comparisons.

**When it differs**, it is a *trade-off* if the cheaper variant is shown to be slower than `compare.time`
allows, its values do not agree, or it did less work; *inconclusive* if it is not shown to be no slower than
that; otherwise the hungrier variant is *waste*.

**When it does not**: *no difference within x %*, x the far end of the interval, if x is at most 20 % (or
`compare.total`) and the interval contains 0 or its mean is within the noise; otherwise *inconclusive*.

Energy and time are compared per unit of work where both variants know theirs, and joules saved are those of the
baseline's work. Modelled energy is compared at
every corner of the profile's watts, and what does not hold at all of them is inconclusive: each pair's ratio
is monotone in each watt, so corners bound it over the whole range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from magneton_dist.config import Compare
from magneton_dist.energy.attribution import Floats
from magneton_dist.energy.statistics import Ratio, mean_interval
from magneton_dist.records.audit import Comparison, Verdict

NO_DIFFERENCE_LIMIT = 0.20  # wider than this, "no difference within" would say nothing
WORK_TOLERANCE = 0.01  # the same margin as for time and values

Effect = Literal["cheaper", "hungrier", "same", "unclear"]  # what the candidate's energy is shown to be


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The repeats of one variant, in the order in which they pair with the other's.

    Attributes:
        name: of the variant.
        time_s: seconds of each run, shape (n,).
        energy_j: joules of each run (nominal when modelled), shape (n,); None when a run is unmeasured.
        corners_j: joules at each corner of the profile's watts, shape (n, corners); None unless modelled.
        work: units or steps done in each run, above 0, shape (n,); None when not known.
        unit: what `work` counts.
        memory_bytes: alive at a traced step's peak, shape (n,); None when not known.
    """

    name: str
    time_s: Floats
    energy_j: Floats | None
    corners_j: Floats | None = None
    work: Floats | None = None
    unit: str = "step"
    memory_bytes: Floats | None = None

    def per_unit(self) -> Runs:
        """Seconds and joules per unit of work; as they are when work is not known."""
        if self.work is None:
            return self
        return replace(
            self,
            time_s=self.time_s / self.work,
            energy_j=None if self.energy_j is None else self.energy_j / self.work,
            corners_j=None if self.corners_j is None else self.corners_j / self.work[:, None],
        )


def compare(
    baseline: Runs,
    candidate: Runs,
    rules: Compare,
    *,
    values_agree: bool | None,
    values_error: float | None = None,
) -> Comparison:
    """Judge `candidate` against `baseline`, which have the same number of runs.

    Args:
        baseline: runs of the one.
        candidate: runs of the other.
        rules: what counts as a difference.
        values_agree: whether both computed the same, within `rules.values`; None when not checked.
        values_error: largest relative difference of values, for the reason.
    """
    one, other, scale = baseline, candidate, np.ones_like(baseline.time_s)
    if baseline.work is not None and candidate.work is not None:
        one, other, scale = baseline.per_unit(), candidate.per_unit(), baseline.work
    energy, memory = _energy_ratio(one, other), _memory_ratio(one, other)
    time = Ratio.of(other.time_s, one.time_s)
    values = _Values(values_agree, values_error)
    subject = _subject(one, other, rules)
    hungrier = None
    if rules.by == "values":
        verdict, reason = _by_values(values, rules)
    elif subject is None:
        verdict, reason = _inconclusive(f"{_SUBJECTS[rules.by].unknown} in at least one run")
    elif len(baseline.time_s) < 2 and rules.by != "memory":
        verdict, reason = _inconclusive("one run per variant gives no interval: set repeats to 2 or more")
    else:
        effect = _effect(subject, rules)
        if effect == "cheaper":
            prices = _Prices(time, energy, values)
            verdict, reason = _weigh(subject, prices, candidate.name, baseline.name, rules)
            hungrier = baseline.name
        elif effect == "hungrier":
            prices = _Prices(time.inverse(), energy and energy.inverse(), values)
            verdict, reason = _weigh(subject.inverse(), prices, baseline.name, candidate.name, rules)
            hungrier = candidate.name
        else:
            verdict, reason = _undecided(effect, subject, rules)
        price = _less_work(baseline, candidate, effect, rules)
        if price:
            verdict, reason = "trade-off", f"{price}; per {candidate.unit}: {reason}"
    saved = share = None
    if baseline.energy_j is not None and one.energy_j is not None and other.energy_j is not None:
        saved = mean_interval((one.energy_j - other.energy_j) * scale)
        share = saved.mean / float(baseline.energy_j.mean())
    return Comparison(
        baseline=baseline.name,
        candidate=candidate.name,
        energy_ratio=energy.interval() if energy else None,
        time_ratio=time.interval(),
        noise=float(energy.noise[0]) if energy and np.isfinite(energy.noise[0]) else None,
        verdict=verdict,
        reason=reason,
        saved_j=saved,
        saved_share=share,
        energy_ratio_range=energy.range() if energy else None,
        hungrier=hungrier,
        by=rules.by,
        memory_ratio=None if memory is None else memory.interval(),
    )


@dataclass(frozen=True)
class _Values:
    agree: bool | None
    error: float | None


@dataclass(frozen=True)
class _Prices:
    """What the cheaper variant may pay, ratios cheap over hungry; energy is None when it is not known."""

    time: Ratio
    energy: Ratio | None
    values: _Values


@dataclass(frozen=True)
class _Subject:
    """How `compare.by` is worded."""

    less: str
    unknown: str


_SUBJECTS = {
    "energy": _Subject("needs {} less energy than", "energy is unmeasured"),
    "time": _Subject("takes {} less time than", "time is unknown"),
    "memory": _Subject("holds {} less memory at a step's peak than", "no step was traced"),
}


def _subject(one: Runs, other: Runs, rules: Compare) -> Ratio | None:
    """Candidate over baseline of what the verdict is about."""
    if rules.by == "time":
        return Ratio.of(other.time_s, one.time_s)
    return _memory_ratio(one, other) if rules.by == "memory" else _energy_ratio(one, other)


def _memory_ratio(one: Runs, other: Runs) -> Ratio | None:
    if one.memory_bytes is None or other.memory_bytes is None:
        return None
    ratio = Ratio.of(other.memory_bytes, one.memory_bytes)
    if len(one.memory_bytes) > 1:
        return ratio
    exact = np.zeros(1)  # the operators of a step allocate the same in every run
    return replace(ratio, half=exact, safe_half=exact, noise=exact)


def _by_values(values: _Values, rules: Compare) -> tuple[Verdict, str]:
    if values.agree is None:
        return _inconclusive("whether both compute the same was not checked")
    if values.agree:
        return "no difference", f"the values agree within {rules.values:.1%}"
    error = "" if values.error is None else f" by {values.error:.2g}"
    return "trade-off", f"the values differ{error}, more than {rules.values:.1%}"


def _energy_ratio(baseline: Runs, candidate: Runs) -> Ratio | None:
    """Candidate over baseline: nominal, then at each corner of the watts; None when a run is unmeasured.

    A side that was measured is the same at every corner.
    """
    if baseline.energy_j is None or candidate.energy_j is None:
        return None
    top, bottom = [candidate.energy_j], [baseline.energy_j]
    corners = [len(side.corners_j.T) for side in (baseline, candidate) if side.corners_j is not None]
    if corners:
        top.append(_at_corners(candidate, corners[0]))
        bottom.append(_at_corners(baseline, corners[0]))
    return Ratio.of(np.column_stack(top), np.column_stack(bottom))


def _at_corners(runs: Runs, corners: int) -> Floats:
    if runs.corners_j is not None:
        return runs.corners_j
    assert runs.energy_j is not None
    return np.tile(runs.energy_j[:, None], (1, corners))


def _effect(energy: Ratio, rules: Compare) -> Effect:
    """What holds at every corner of the watts."""
    effects = _effects(energy, rules)
    return effects.pop() if len(effects) == 1 else "unclear"


def _effects(energy: Ratio, rules: Compare) -> set[Effect]:
    """What holds at each corner of the watts."""
    size = np.abs(energy.mean)
    margin, limit = energy.noise, NO_DIFFERENCE_LIMIT
    if rules.by == "memory":
        margin = np.maximum(margin, np.log1p(WORK_TOLERANCE))
    if rules.total != "auto":
        margin, limit = np.full(size.shape, np.log1p(rules.total)), rules.total
    differs = size - energy.safe_half > margin
    same = ((size <= energy.half) | (size <= margin)) & (_far_end(energy) <= limit)
    found: set[Effect] = set()
    if (differs & (energy.mean < 0)).any():
        found.add("cheaper")
    if (differs & (energy.mean > 0)).any():
        found.add("hungrier")
    if (same & ~differs).any():
        found.add("same")
    if (~same & ~differs).any():
        found.add("unclear")
    return found


def _far_end(energy: Ratio) -> Floats:
    """Largest relative difference inside each interval."""
    return np.asarray(np.expm1(np.abs(energy.mean) + energy.half))


def _weigh(subject: Ratio, paid: _Prices, cheap: str, hungry: str, rules: Compare) -> tuple[Verdict, str]:
    """Is what `hungry` burns beyond `cheap` waste, or a price? `subject` is cheap over hungry."""
    less = _SUBJECTS[rules.by].less.format(f"{-np.expm1(subject.mean[0]):.1%}")
    saves = f"{cheap} {less} {hungry}"
    mean, half, tolerance = float(paid.time.mean[0]), float(paid.time.half[0]), float(np.log1p(rules.time))
    prices = []
    if rules.by != "time" and mean - half > tolerance:
        prices.append(f"is {np.expm1(mean):.1%} slower")
    if rules.by != "energy" and paid.energy is not None and _effect(paid.energy, rules) == "hungrier":
        prices.append(f"needs {np.expm1(paid.energy.mean[0]):.1%} more energy")
    if paid.values.agree is False:
        error = "" if paid.values.error is None else f" (off by {paid.values.error:.2g})"
        prices.append(f"computes other values{error}")
    if prices:
        return "trade-off", f"{saves}, but {' and '.join(prices)}"
    if rules.by != "time" and not np.isfinite(half):
        return _inconclusive(f"{saves}; one run each does not show whether it is slower")
    if rules.by != "time" and mean + half > tolerance:
        return _inconclusive(
            f"{saves}, but takes {np.exp(mean - half):.3f} to {np.exp(mean + half):.3f} times as long, "
            f"which does not show that it is at most {rules.time:.1%} slower: "
            "more repeats, longer runs, or a wider compare.time"
        )
    unchecked = "; whether both compute the same was not checked" if paid.values.agree is None else ""
    slower = "" if rules.by == "time" else " and is no slower"
    return "waste", f"{saves}{slower}{unchecked}"


def _undecided(effect: Effect, energy: Ratio, rules: Compare) -> tuple[Verdict, str]:
    """The verdict where energy is not shown to differ."""
    if effect == "same":
        return "no difference", f"no difference within {_far_end(energy).max():.1%}"
    watts = energy.range()
    if watts is not None and len(_effects(energy, rules)) > 1 and _effects(energy.nominal(), rules) != {"unclear"}:
        return _inconclusive(
            "it depends on the profile's watts: "
            f"over their range the energy ratio is {watts[0]:.3f} to {watts[1]:.3f}"
        )
    return _inconclusive(
        f"a difference cannot be told from the noise between runs ({energy.noise[0]:.1%}): "
        "more repeats or longer runs"
    )


def _less_work(baseline: Runs, candidate: Runs, effect: Effect, rules: Compare) -> str:
    """Who saved by doing less work, in words; empty when nobody did."""
    total = _subject(baseline, candidate, rules)
    if baseline.work is None or candidate.work is None or total is None:
        return ""
    ratio = float(candidate.work.sum() / baseline.work.sum())
    lazy, gain = candidate, "cheaper"
    if ratio > 1:
        lazy, gain, ratio = baseline, "hungrier", 1 / ratio
    if ratio >= 1 - WORK_TOLERANCE or gain not in (effect, _effect(total, rules)):
        return ""
    return f"{lazy.name} did {1 - ratio:.1%} less work"


def _inconclusive(reason: str) -> tuple[Verdict, str]:
    return "inconclusive", reason
