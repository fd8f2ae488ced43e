"""What a meter is, the meter that measures nothing, and the sanity check of energy counters.

A meter never creates a CUDA context, never raises from `read` or `conditions`, and never says 0 for what it does not
know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from magneton_dist.meters.gpm import Activity
    from magneton_dist.records.audit import EnergyKind


# A counter ticks in steps of up to 100 ms: a second's worth of energy may arrive at once, never more.
_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a meter.

    Attributes:
        t_ns: time that `watts` speaks for (end of its interval), host monotonic clock, ns.
        watts: mean power over the sensor's window, W; None when it could not be read.
        joules: energy since the meter was opened, J; None when there is no counter or it cannot be trusted.
        joules_t_ns: when the counter was read, ns; None: at `t_ns`.
        reason: why something is None, in one line; empty when all that the meter has was read.
    """

    t_ns: int
    watts: float | None
    joules: float | None
    joules_t_ns: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device was like at one moment; None or empty where it does not tell.

    Attributes:
        temperature_c: of the device, degrees Celsius.
        power_cap_w: enforced power limit, W.
        throttled: reasons why clocks are held down (they invalidate a measurement), empty when none.
        shared: why the device's energy is not this process's alone, empty when it is.
    """

    temperature_c: float | None = None
    power_cap_w: float | None = None
    throttled: tuple[str, ...] = ()
    shared: str = ""


class Meter(Protocol):
    """One source of watts or joules of one physical device.

    Attributes:
        name: as in the configuration: nvml, rapl, null, modelled:NAME.
        provenance: kind of the joules that come from it.
        source: where they come from, in words.
        device: the physical device metered (GPU UUID, host and its CPU packages); ranks with the same one
            share it.
        sensor: name of the sensor in the power table.
        counter: name of the counter in the counters table, empty when there is none.
        period_s: time between two updates of the sensor, s; 0 when there is nothing to poll.
        window_ns: averaging window of a power reading, ns; 0: mean since the reading before.
    """

    name: str
    provenance: EnergyKind
    source: str
    device: str
    sensor: str
    counter: str
    period_s: float
    window_ns: int

    def read(self) -> Reading:
        """Read now; what fails is None with a reason."""
        ...

    def conditions(self) -> Conditions:
        """Temperature, power cap and what disturbs the measurement, now."""
        ...

    def close(self) -> None:
        """Release the device; harmless when repeated."""
        ...


@runtime_checkable
class Monitored(Protocol):
    """A meter of a device that has performance monitors, or may have."""

    def activity(self) -> Activity | None:
        """How busy the device's parts were since the last call; None where too little time has passed.

        Raises:
            MeterError: this device does not tell.
        """
        ...


class NullMeter:
    """Measures nothing and says so: every figure from it is unmeasured."""

    name = "null"
    provenance: EnergyKind = "unmeasured"
    sensor = "null"
    counter = ""
    period_s = 0.0
    window_ns = 0

    def __init__(self, device: str, source: str = "no meter: energy is unmeasured") -> None:
        self.device = device
        self.source = source

    def read(self) -> Reading:
        """A reading without figures."""
        return Reading(time.monotonic_ns(), None, None, reason=self.source)

    def conditions(self) -> Conditions:
        """Nothing is known."""
        return Conditions()

    def close(self) -> None:
        """Nothing to release."""


class Counter:
    """Joules since the first reading of a cumulative energy counter, and the mean watts between its ticks.

    A counter that runs backwards, jumps, or sticks is not trusted from then on: `fault` says why, and
    `update` returns None.

    Args:
        limit_w: more than this cannot be drawn, W.
        range_j: value at which the counter starts again from 0, J; None when it never does.
        stuck_s: a device that is on moves its counter within this time, s.
    """

    def __init__(self, limit_w: float, range_j: float | None = None, stuck_s: float = 10.0) -> None:
        self.fault = ""
        self.watts: float | None = None  # between the last two ticks
        self.tick_ns = 0  # when it last moved
        self._limit_w = limit_w
        self._range_j = range_j
        self._stuck_ns = int(stuck_s * 1e9)
        self._raw_j: float | None = None
        self._joules = 0.0

    def update(self, t_ns: int, raw_j: float) -> float | None:
        """Take one raw value in J; returns joules since the first, or None once it is not trusted."""
        if self.fault:
            return None
        if self._raw_j is None:
            self._raw_j, self.tick_ns = raw_j, t_ns
            return 0.0
        elapsed_ns = t_ns - self.tick_ns
        possible_j = self._limit_w * (elapsed_ns / 1e9 + _TICK_S)
        step_j = raw_j - self._raw_j
        if step_j < 0 and self._range_j is not None:
            step_j += self._range_j
        if self._range_j is not None and possible_j > self._range_j:
            self.fault = f"not read for {elapsed_ns / 1e9:.0f} s: it may have wrapped around unseen"
        elif not 0 <= step_j <= possible_j:
            self.fault = f"energy counter jumped by {step_j:.0f} J in {elapsed_ns / 1e9:.3f} s"
        elif step_j == 0 and elapsed_ns > self._stuck_ns:
            self.fault = f"energy counter has not moved for {elapsed_ns / 1e9:.0f} s"
        if self.fault:
            self.watts = None
            return None
        if step_j == 0:
            return self._joules
        self.watts = step_j / (elapsed_ns / 1e9) if elapsed_ns > 0 else None
        self._raw_j, self.tick_ns = raw_j, t_ns
        self._joules += step_j
        return self._joules
