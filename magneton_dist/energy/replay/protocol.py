"""How operators are replayed so that a slow, late and sparse sensor tells their energy to a per cent.

Back to back for `window_s`, in ABBA order where several arms are compared, with what a sensor still owes of the
time before discarded. Readings of a flat load need neither lag nor window undone; where one repetition is long
against the sensor's window, a window is made of eight blocks that each begin an eighth of the sensor's period later,
so that a sensor that sleeps through most of its period sees all of the repetition. Windows in which the device
throttled, or was more than 2 degrees from the latest one, do not count. What stays wider than asked for after
`most` windows is inconclusive.

numpy and polars suffice for it, so that it runs where little else is installed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from magneton_dist.energy.replay.power import SteadyPower, Tables, steady_power

if TYPE_CHECKING:
    from magneton_dist.meters.meter import Conditions

Floats = npt.NDArray[np.float64]

# Student's t at 97.5 %, by degrees of freedom from 1 on
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
_LATEST_S = 0.25  # more than any published sensor lags, beside its window
_LONG = 1 / 20  # of the sensor's window: a longer repetition is not flat to it
_DISAGREE = 0.02  # of two sources of the same watts, worth a note
_TRIES = 3  # windows tried per window that may count: throttling that does not end must


@dataclass(frozen=True)
class Rules:
    """How long and how often.

    Attributes:
        warm_up_s: before the first window, s.
        discard_s: at the head of every block, s; longer where the sensor's window asks for it.
        window_s: of steady load that is read, s.
        fewest, most: windows that count.
        half_width: of the 95 % interval, relative, at which it is enough.
        phases: blocks of a window whose repetitions are long.
        drift_c: windows at temperatures further from the latest's do not count, degrees Celsius.
    """

    warm_up_s: float = 2.0
    discard_s: float = 1.0
    window_s: float = 10.0
    fewest: int = 5
    most: int = 12
    half_width: float = 0.01
    phases: int = 8
    drift_c: float = 2.0

    def seconds(self, arms: int, sensor_window_s: float) -> float:
        """What the fewest windows of so many arms take, s."""
        return self.warm_up_s + self.fewest * arms * (self.window_s + self.discard(sensor_window_s))

    def discard(self, sensor_window_s: float) -> float:
        """What is left out at the head of a block under a sensor with this window, s."""
        return max(self.discard_s, 2 * sensor_window_s + _LATEST_S) if self.discard_s else 0.0


# Without a meter only the time of a repetition is to be had.
TIMES = Rules(warm_up_s=0.2, discard_s=0.0, window_s=0.3, fewest=5, most=12)


@dataclass(frozen=True)
class Span:
    """A stretch of repetitions back to back: when, on the host's monotonic clock, and how many."""

    start_ns: int
    end_ns: int
    rounds: int

    @property
    def seconds(self) -> float:
        """How long, s."""
        return (self.end_ns - self.start_ns) / 1e9


class Arm(Protocol):
    """Something to repeat."""

    def run(self, seconds: float) -> Span:
        """Repeat it back to back for about so long; over when the device has done it."""
        ...


class Watch(Protocol):
    """The meters of the devices that the arms load.

    Attributes:
        measures: whether they give watts at all.
        window_s: averaging window of the slowest sensor, s.
        period_s: time between two updates of the slowest, s.
    """

    measures: bool
    window_s: float
    period_s: float

    def readings(self, start_ns: int, end_ns: int) -> list[Tables]:
        """Power and counters of each device between two moments."""
        ...

    def conditions(self) -> list[Conditions]:
        """Of each device, now."""
        ...

    def rest_until(self, moment_s: float, period_s: float) -> None:
        """Let time pass until the host's clock is so far into the period."""
        ...


@dataclass
class Series:
    """Windows that count, one row each; columns are arms.

    Attributes:
        joules: per repetition, gross, all devices together; NaN where nothing measures.
        seconds: per repetition.
        rejected: why windows did not count, and how many.
        notes: what a reader should know.
        conclusive: the interval got as narrow as asked for.
        source: counter or power; empty where nothing measures.
        temperature_c: of the hottest device, mean over the windows; None where no device tells.
    """

    joules: Floats
    seconds: Floats
    rejected: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    conclusive: bool = False
    source: str = ""
    temperature_c: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A mean over windows and the half-width of its 95 % interval; infinite from fewer than two."""

    mean: float
    half: float


Figure = Callable[[Floats], Floats]  # (windows, arms) -> (windows,)


def first_arm(of_windows: Floats) -> Floats:
    """What the first arm costs."""
    return of_windows[:, 0]


def estimate(values: Floats) -> Estimate:
    """Mean of independent windows with t(0.975, n - 1) s / sqrt(n)."""
    n = len(values)
    mean = float(values.mean()) if n else float("nan")
    if n < 2:
        return Estimate(mean, float("inf"))
    return Estimate(mean, _T[min(n - 1, len(_T)) - 1] * float(values.std(ddof=1)) / n**0.5)


def measure(
    arms: Sequence[Arm], watch: Watch, rules: Rules, figure: Figure = first_arm, absolute: bool = False,
    within_s: float = math.inf,
) -> Series:
    """Replay `arms` in ABBA order until `figure` is known well enough.

    Args:
        arms: to repeat; one alone, or several that are compared.
        watch: meters of the devices that they load.
        rules: how long and how often.
        figure: what must be known, out of the arms' joules (or seconds, where nothing measures).
        absolute: `figure` is a logarithm or ratio: its half-width is not relative to its mean.
        within_s: no window is begun that would end later, counted from the first.
    """
    longest_s = max(_cycle_s(arm.run(rules.warm_up_s)) for arm in arms)
    blocks = rules.phases if watch.measures and longest_s > _LONG * watch.window_s > 0 else 1
    windows: list[_Window] = []
    rejected: Counter[str] = Counter()
    notes: set[str] = set()
    source, conclusive = "", False
    first_ns = turn_s = spent_s = 0.0
    for turn in range(rules.most * _TRIES):
        if spent_s + turn_s > within_s:
            break
        order = list(range(len(arms)))[:: -1 if turn % 2 else 1]
        seen = {arm: _window(arms[arm], watch, rules, blocks) for arm in order}
        spans = [span for arm in order for span in seen[arm].spans]
        first_ns = first_ns or spans[0].start_ns
        turn_s, spent_s = (spans[-1].end_ns - spans[0].start_ns) / 1e9, (spans[-1].end_ns - first_ns) / 1e9
        window = _Window([seen[arm] for arm in range(len(arms))], watch.conditions())
        reason = window.unusable(watch.measures)
        if reason:
            rejected[reason] += 1
            continue
        kept = [w for w in windows if not w.warmer(window, rules.drift_c)]
        rejected["temperature drifted"] += len(windows) - len(kept)
        windows = [*kept, window]
        source = source or window.source
        notes.update(window.notes())
        values = figure(_joules(windows) if watch.measures else _seconds(windows))
        got = estimate(values)
        conclusive = len(windows) >= rules.fewest and got.half <= rules.half_width * (1 if absolute else abs(got.mean))
        if conclusive or len(windows) >= rules.most:
            break
    joules, seconds = _joules(windows), _seconds(windows)
    shape = (len(windows), len(arms))
    hottest = [window.hottest_c for window in windows]
    known = [c for c in hottest if c is not None]
    return Series(
        joules.reshape(shape), seconds.reshape(shape), +rejected, sorted(notes), conclusive, source,
        sum(known) / len(known) if known else None,
    )  # fmt: skip


def _cycle_s(span: Span) -> float:
    return span.seconds / max(1, span.rounds)


@dataclass(frozen=True)
class _Block:
    spans: list[Span]
    power: SteadyPower | None  # of all devices together

    @property
    def cycle_s(self) -> float:
        return sum(span.seconds for span in self.spans) / max(1, sum(span.rounds for span in self.spans))


@dataclass(frozen=True)
class _Window:
    arms: list[_Block]
    conditions: list[Conditions]

    @property
    def source(self) -> str:
        power = self.arms[0].power
        return "" if power is None else power.source

    @property
    def hottest_c(self) -> float | None:
        return max((c.temperature_c for c in self.conditions if c.temperature_c is not None), default=None)

    def unusable(self, measures: bool) -> str:
        reasons = sorted({reason for c in self.conditions for reason in c.throttled})
        if reasons:
            return f"throttled: {', '.join(reasons)}"
        if measures and any(arm.power is None for arm in self.arms):
            return "too few readings"
        return ""

    def warmer(self, other: _Window, by_c: float) -> bool:
        pairs = zip(self.conditions, other.conditions, strict=True)
        return any(
            abs(a.temperature_c - b.temperature_c) > by_c
            for a, b in pairs
            if a.temperature_c is not None and b.temperature_c is not None
        )

    def notes(self) -> set[str]:
        off = [p for arm in self.arms if (p := arm.power) and p.other_w and abs(p.other_w / p.watts - 1) > _DISAGREE]
        said = {f"counter and power disagree by more than {_DISAGREE:.0%}" for _ in off[:1]}
        return said | {f"not alone: {c.shared}" for c in self.conditions if c.shared}


def _joules(windows: list[_Window]) -> Floats:
    rows = [[arm.power.watts * arm.cycle_s if arm.power else np.nan for arm in w.arms] for w in windows]
    return np.array(rows, dtype=np.float64)


def _seconds(windows: list[_Window]) -> Floats:
    return np.array([[arm.cycle_s for arm in w.arms] for w in windows], dtype=np.float64)


def _window(arm: Arm, watch: Watch, rules: Rules, blocks: int) -> _Block:
    """One window of one arm: its repetitions, and the watts while they were steady."""
    discard_s = rules.discard(watch.window_s)
    spans, steady = [], []
    for block in range(blocks):
        if blocks > 1:
            watch.rest_until(block / blocks * watch.period_s, watch.period_s)
        span = arm.run(discard_s + rules.window_s / blocks)
        spans.append(span)
        steady.append((span.start_ns + round(discard_s * 1e9), span.end_ns))
    if not watch.measures:
        return _Block(spans, None)
    tables = watch.readings(spans[0].start_ns, spans[-1].end_ns)
    devices = [steady_power(power, counters, steady) for power, counters in tables]
    return _Block(spans, SteadyPower.together(devices))
