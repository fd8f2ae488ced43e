"""A device's energy, shared out to the states it was spent in; what was not measured stays unmeasured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from magneton_dist.records.audit import StateShare

Floats = npt.NDArray[np.float64]
Nanoseconds = npt.NDArray[np.int64]

# Less than this share of an interval measured: its joules are unmeasured, not understated.
MIN_COVERAGE = 0.99
# Power and counter disagreeing by more is worth a note (facts: two NVML sources gave 187 and 327 J).
COUNTER_TOLERANCE = 0.02
AT_ONCE = 1 << 17  # states that are looked at together, which bounds the memory that it takes


class PowerIntegral:
    """Energy of any interval under a power table.

    Reading i is the mean power since reading i-1 (the first: over its own window), so energy is piecewise
    linear in time. A reading without watts leaves its interval unmeasured.

    Args:
        power: one device's readings, schema `POWER`, in any order.
    """

    def __init__(self, power: pl.DataFrame) -> None:
        power = power.select("t_ns", "window_ns", "watts")
        power = power if power["t_ns"].is_sorted() else power.sort("t_ns")
        t_ns = power["t_ns"].to_numpy()  # there may be millions of readings: whole columns are few and written in place
        self._origin_ns = int(t_ns[0]) - (power["window_ns"][0] or 0) if len(t_ns) else 0
        self._edges_s: Floats = np.zeros(len(t_ns) + 1)
        np.divide(t_ns - self._origin_ns, 1e9, out=self._edges_s[1:])
        lengths_s = np.diff(self._edges_s)
        watts = power["watts"].cast(pl.Float64).to_numpy()
        measured = np.isfinite(watts)
        self._joules: Floats = np.zeros_like(self._edges_s)
        np.multiply(watts, lengths_s, out=self._joules[1:], where=measured)
        np.cumsum(self._joules, out=self._joules)
        self._measured_s = self._edges_s
        if not measured.all():
            self._measured_s = np.zeros_like(self._edges_s)
            np.cumsum(measured * lengths_s, out=self._measured_s[1:])

    def joules(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Floats:
        """Energy in the measured part of each interval, J."""
        return self._between(self._joules, start_ns, end_ns)

    def measured_s(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Floats:
        """How much of each interval was measured, s."""
        return self._between(self._measured_s, start_ns, end_ns)

    def _between(self, cumulative: Floats, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Floats:
        # relative to the origin: a double holds no absolute ns after 104 days of uptime
        start_s, end_s = (start_ns - self._origin_ns) / 1e9, (end_ns - self._origin_ns) / 1e9
        until_end: Floats = np.interp(end_s, self._edges_s, cumulative)
        until_start: Floats = np.interp(start_s, self._edges_s, cumulative)
        return until_end - until_start


@dataclass(frozen=True)
class Attribution:
    """Where a device's joules of one window went.

    Attributes:
        states: by ``phase/activity``; `j` is None where less than 99 % of the state's time was measured.
        total_j: integral of the power table over the window; None below the same coverage.
        residual_j: total less the states' sum: time in no state, or states that are unmeasured.
        counter_j: the energy counter over the window; None without a trustworthy one.
        unmeasured_s: time of the window without power, s.
        notes: gaps and disagreements, in words.
    """

    states: dict[str, StateShare]
    total_j: float | None
    residual_j: float | None
    counter_j: float | None
    unmeasured_s: float
    notes: tuple[str, ...]


def attribute(
    power: pl.DataFrame,
    states: pl.DataFrame,
    counters: pl.DataFrame | None = None,
    *,
    window_ns: tuple[int, int] | None = None,
    share: float = 1.0,
) -> Attribution:
    """Share out the energy under `power` to `states`.

    Args:
        power: readings of the rank's device, schema `POWER`; empty when there is no meter.
        states: start_ns, end_ns, phase, activity; not overlapping.
        counters: readings of the device's energy counter, schema `COUNTERS`.
        window_ns: start and end of what is accounted for; default: from the first state to the last.
        share: part of the device's energy that is this rank's, for a device that several ranks share.
    """
    if window_ns is None:
        window_ns = _span(states)
    start_ns, end_ns = (np.array([edge], dtype=np.int64) for edge in window_ns)
    integral = PowerIntegral(power)
    duration_s = (window_ns[1] - window_ns[0]) / 1e9
    measured_s = float(integral.measured_s(start_ns, end_ns)[0])
    unmeasured_s = max(0.0, duration_s - measured_s)
    total_j = _known(share * float(integral.joules(start_ns, end_ns)[0]), measured_s, duration_s)

    shares = _by_state(integral, states, share)
    known_j = sum(state.j for state in shares.values() if state.j is not None)
    notes = []
    if unmeasured_s > (1 - MIN_COVERAGE) * duration_s:
        notes.append(f"power was not measured for {unmeasured_s:.2f} s of {duration_s:.2f} s")
    counter_j = None
    if counters is not None:
        counter_j = _counter_j(counters, window_ns, share)
        notes += _disagreement(total_j, counter_j)
    if share != 1.0:
        notes.append(f"the device is shared: {share:.0%} of its energy is apportioned to this rank")
    return Attribution(
        states=shares,
        total_j=total_j,
        residual_j=None if total_j is None else total_j - known_j,
        counter_j=counter_j,
        unmeasured_s=unmeasured_s,
        notes=tuple(notes),
    )


def _by_state(integral: PowerIntegral, states: pl.DataFrame, share: float) -> dict[str, StateShare]:
    parts = [_sums(integral, states[first : first + AT_ONCE], share) for first in range(0, states.height, AT_ONCE)]
    if not parts:
        return {}
    sums = pl.concat(parts).group_by("phase", "activity").sum()
    state = pl.concat_str(["phase", "activity"], separator="/").alias("state")
    rows = sums.select(state, "s", "j", "measured_s").sort("state").iter_rows()
    return {state: StateShare(s, _known(j, measured_s, s)) for state, s, j, measured_s in rows}


def _sums(integral: PowerIntegral, states: pl.DataFrame, share: float) -> pl.DataFrame:
    """Seconds, joules and measured seconds by phase and activity."""
    start_ns, end_ns = states["start_ns"].to_numpy(), states["end_ns"].to_numpy()
    return states.select(
        "phase", "activity", s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
        j=pl.Series(share * integral.joules(start_ns, end_ns)),
        measured_s=pl.Series(integral.measured_s(start_ns, end_ns)),
    ).group_by("phase", "activity").sum()  # fmt: skip


def _known(joules: float, measured_s: float, duration_s: float) -> float | None:
    return joules if measured_s > 0 and measured_s >= MIN_COVERAGE * duration_s else None


def _counter_j(counters: pl.DataFrame, window_ns: tuple[int, int], share: float) -> float | None:
    """Energy of the window by the counter, or None when its readings do not span the window."""
    counters = counters.sort("t_ns")
    if len(counters) < 2:
        return None
    t_ns, joules = counters["t_ns"].to_numpy(), counters["joules"].to_numpy()
    covered_ns = min(window_ns[1], int(t_ns[-1])) - max(window_ns[0], int(t_ns[0]))
    if covered_ns < MIN_COVERAGE * (window_ns[1] - window_ns[0]):
        return None
    first, last = np.interp(np.array(window_ns) - t_ns[0], t_ns - t_ns[0], joules)
    return share * float(last - first)


def _disagreement(total_j: float | None, counter_j: float | None) -> list[str]:
    if total_j is None or counter_j is None or abs(total_j - counter_j) <= COUNTER_TOLERANCE * counter_j:
        return []
    return [
        f"power integrates to {total_j:.1f} J, the energy counter says {counter_j:.1f} J: "
        f"they disagree by more than {COUNTER_TOLERANCE:.0%}"
    ]


def _span(states: pl.DataFrame) -> tuple[int, int]:
    if states.is_empty():
        return (0, 0)
    start_ns, end_ns = states.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return int(start_ns), int(end_ns)
