"""What a cause costs in joules: one call as it was, and with the cause alone flipped.

Measured where the meter of the record measures here too: both are repeated in turn in fresh processes, as `replay`
does. Where the record's joules are modelled, these are: the device's watts while it computes times the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np

from magneton_dist.diagnosis.prove import Flipped
from magneton_dist.diagnosis.trial import FLIPPED_ROUNDS, Trial
from magneton_dist.energy.replay.protocol import Floats, Rules, Series, Span, estimate, measure
from magneton_dist.energy.replay.watch import MeterWatch
from magneton_dist.errors import MagnetonError, MeterError
from magneton_dist.meters import Meter, load_profile, open_meter, visible_gpus
from magneton_dist.records.audit import EnergyKind

MODELLED = "modelled:"
RULES = Rules(warm_up_s=0.5, discard_s=0.3, window_s=2.0, fewest=3, most=6, half_width=0.05)
NOTHING: Flipped = frozenset()
OpenMeter = Callable[[str, str], tuple[Meter, str]]


@dataclass(frozen=True)
class FlipJoules:
    """Joules of one call.

    Attributes:
        before, after: as it was, and with the cause alone flipped; None where that is not known.
        kind: measured, modelled or unmeasured.
        words: how they come about, or why there are none.
    """

    before: float | None
    after: float | None
    kind: EnergyKind
    words: str

    def line(self, variants: tuple[str, str], cause: list[str]) -> str:
        """In words; `variants`: the one it was in, and the one that the cause is flipped to."""
        if self.before is None or self.after is None:
            return f"energy: of a call: unmeasured: {self.words}"
        before, after = (f"{j:.3g} J" if j >= 1 else f"{1e3 * j:.3g} mJ" for j in (self.before, self.after))
        flipped = f"{after} with just {' and '.join(cause)} as in {variants[1]}"
        return f"energy: a call takes {before} as in {variants[0]}, {flipped}: {self.words}"


class _NoRepeatsError(MagnetonError):
    """A process that was to repeat a call did not."""


@dataclass(frozen=True)
class _World:
    """A call in one world, as something to repeat; each time in a fresh process."""

    trial: Trial
    flipped: Flipped

    def run(self, seconds: float) -> Span:
        said = self.trial.repeated(self.flipped, seconds)
        if "error" in said:
            raise _NoRepeatsError(f"a call could not be repeated: {said['error']}")
        return Span(**said["repeated"])


def flip_joules(
    trial: Trial, cause: Flipped, meter: str, left_s: float, opened: OpenMeter = open_meter, rules: Rules = RULES
) -> FlipJoules:
    """What flipping just `cause` changes in the joules of one call.

    Args:
        trial: of the call.
        cause: the factors that were proved to make the difference.
        meter: of the record, as a configuration names it.
        left_s: time that this may take, s.
        opened: opens a meter of a device.
        rules: how long and how often it is measured.

    Raises:
        OutOfTimeError: the time for the diagnosis is over.
    """
    if meter.startswith(MODELLED):
        return _modelled(trial, cause, meter)
    gpus = visible_gpus(None).uuids if trial.gpu else ["cpu"]
    try:
        with closing(opened(meter, gpus[0] if gpus else "cpu")[0]) as metering:
            if metering.provenance != "measured":
                return FlipJoules(None, None, "unmeasured", f"{meter} does not measure on this machine")
            watch = MeterWatch([metering])
            needed_s = rules.seconds(2, watch.window_s)
            if left_s < needed_s:
                return FlipJoules(None, None, "unmeasured", f"it takes {needed_s:.0f} s, more than are left")
            with watch:
                series = measure(
                    [_World(trial, NOTHING), _World(trial, cause)], watch, rules, _log_ratio, absolute=True,
                    within_s=left_s,
                )  # fmt: skip
    except (MeterError, _NoRepeatsError) as error:
        return FlipJoules(None, None, "unmeasured", str(error))
    return _measured(series, metering)


def _measured(series: Series, meter: Meter) -> FlipJoules:
    if len(series.joules) < 2:
        why = ", ".join(series.rejected) or "too little time"
        return FlipJoules(None, None, "unmeasured", f"no window of {meter.name} counts: {why}")
    ratio = estimate(_log_ratio(series.joules))
    low, high = (float(np.exp(ratio.mean + sign * ratio.half)) for sign in (-1, 1))
    before, after = (float(joules) for joules in series.joules.mean(axis=0))
    words = f"{np.exp(ratio.mean):.2f}x ({low:.2f} to {high:.2f}), measured by {meter.name}"
    return FlipJoules(before, after, "measured", words)


def _modelled(trial: Trial, cause: Flipped, meter: str) -> FlipJoules:
    watts = load_profile(meter.removeprefix(MODELLED)).watts["compute"]
    times: tuple[list[float], list[float]] = [], []
    for _ in range(FLIPPED_ROUNDS):
        for taken, flipped in zip(times, (NOTHING, cause), strict=True):
            seconds = trial.seconds(flipped)
            if seconds is None:
                return FlipJoules(None, None, "unmeasured", "a call could not be timed")
            taken.append(seconds)
    before, after = (watts.nominal * median(taken) for taken in times)
    words = f"{after / before:.2f}x, modelled: its time at {watts.low:g} to {watts.high:g} W ({meter})"
    return FlipJoules(before, after, "modelled", words)


def _log_ratio(of_windows: Floats) -> Floats:
    return np.asarray(np.log(of_windows[:, 1] / of_windows[:, 0]), dtype=np.float64)
