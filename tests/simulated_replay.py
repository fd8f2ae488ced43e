"""Replay on a pretended device under a pretended sensor, in pretended time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.energy.attribution import PowerIntegral
from magneton_dist.energy.replay.power import Tables
from magneton_dist.energy.replay.protocol import Span
from magneton_dist.meters.meter import Conditions
from magneton_dist.meters.sensor import Floats, Sensor
from magneton_dist.records.schema import COUNTERS, POWER

IDLE_W = 121.7
Cycle = tuple[tuple[float, float], ...]  # seconds and watts, one after another

# The operators of the paper's Table 4. Watts are within what is published for an H200 (energy facts of the profile);
# the all-reduce's repetition is as long as most sensors' period, and rests through part of it: the hardest case.
TABLE_4: dict[str, Cycle] = {
    "arange": ((4e-6, 140.0), (2e-6, IDLE_W)),
    "contiguous": ((450e-6, 540.0), (10e-6, IDLE_W)),
    "linear": ((2.1e-3, 690.0), (15e-6, IDLE_W)),
    "attention": ((1.2e-3, 420.0), (1.9e-3, 640.0)),
    "all-reduce": ((30e-3, 130.0), (70e-3, 300.0)),
}


def joules(cycle: Cycle) -> float:
    """Of one repetition, J."""
    return sum(seconds * watts for seconds, watts in cycle)


@dataclass
class Repeated:
    """An arm: a cycle on a device."""

    device: Device
    cycle: Cycle

    def run(self, seconds: float) -> Span:
        cycle_s = sum(s for s, _ in self.cycle)
        rounds = max(1, math.ceil(seconds / cycle_s))
        start_s = self.device.now_s
        if cycle_s < 2e-4:  # no sensor tells phases so short apart
            self.device.draw(((rounds * cycle_s, joules(self.cycle) / cycle_s),), 1)
        else:
            self.device.draw(self.cycle, rounds)
        return Span(round(start_s * 1e9), round(self.device.now_s * 1e9), rounds)


class Device:
    """Draws known watts and is seen through `sensor`; its clock is in the hands of those who use it.

    Args:
        sensor: with its gain and lag, which a `Watch` does not tell.
        seed: of the sensor's phase, of noise (2 W) and of fluctuations (2 % from tenth to tenth of a second).
        counter: has an energy counter, which ticks with the sensor, too.
    """

    measures = True

    def __init__(self, sensor: Sensor, seed: int, counter: bool = False) -> None:
        self.sensor, self.window_s, self.period_s = sensor, sensor.window_s, sensor.period_s
        self.temperature_c = 60.0
        self.throttled: tuple[str, ...] = ()
        self.now_s = 100.0
        self._counter = counter
        self._random = np.random.default_rng(seed)
        self._phase_s = self._random.uniform(0, sensor.period_s)
        self._edges_s, self._watts = [np.array([90.0, 100.0])], [np.array([IDLE_W])]

    def draw(self, cycle: Cycle, rounds: int) -> None:
        lengths_s, watts = np.tile(np.array(cycle).T, rounds)
        if len(lengths_s) == 1:  # long and flat: cut it, to let it fluctuate
            pieces = max(1, round(lengths_s[0] / 0.1))
            lengths_s, watts = np.full(pieces, lengths_s[0] / pieces), np.full(pieces, watts[0])
        at_s = self.now_s + np.cumsum(lengths_s)
        tenths = (at_s / 0.1).astype(np.int64)
        wobble = self._random.normal(1.0, 0.02, int(tenths[-1] - tenths[0]) + 1)
        self._edges_s.append(at_s)
        self._watts.append(watts * wobble[tenths - tenths[0]])
        self.now_s = float(at_s[-1])

    def arm(self, cycle: Cycle) -> Repeated:
        return Repeated(self, cycle)

    def trace(self, start_s: float) -> tuple[Floats, Floats]:
        edges_s, watts = np.concatenate(self._edges_s), np.concatenate(self._watts)
        first = max(0, int(np.searchsorted(edges_s, start_s)) - 1)
        return edges_s[first:], watts[first:]

    def readings(self, start_ns: int, end_ns: int) -> list[Tables]:
        start_s, end_s = start_ns / 1e9, end_ns / 1e9
        edges_s, watts = self.trace(start_s - 2)
        first = math.ceil((start_s - self._phase_s) / self.period_s)
        ticks = self._phase_s + self.period_s * np.arange(first, (end_s - self._phase_s) / self.period_s)
        shown = self.sensor.response(ticks, edges_s, watts[:, None])[:, 0]
        shown = np.round(shown + self._random.normal(0, 2.0, len(ticks)), 3)
        t_ns = np.rint(ticks * 1e9).astype(np.int64)
        power = pl.DataFrame(
            {"device": "simulated", "t_ns": t_ns, "watts": shown, "sensor": "simulated",
             "window_ns": round(self.window_s * 1e9)},
            schema=POWER.schema,
        )  # fmt: skip
        counters = COUNTERS.empty()
        if self._counter:
            total = np.concatenate([[0.0], np.cumsum(watts * np.diff(edges_s))])
            seen = self.sensor.gain * np.interp(ticks - self.sensor.lag_s, edges_s, total)
            counters = pl.DataFrame(
                {"device": "simulated", "t_ns": t_ns, "joules": np.round(seen, 3), "sensor": "simulated"},
                schema=COUNTERS.schema,
            )
        return [(power, counters)]

    def conditions(self) -> list[Conditions]:
        return [Conditions(temperature_c=self.temperature_c, throttled=self.throttled)]

    def rest_until(self, moment_s: float, period_s: float) -> None:
        seconds = (moment_s - self.now_s) % period_s
        if seconds > 0:
            self.draw(((seconds, IDLE_W),), 1)


def naive_joules(sensor: Sensor, cycle: Cycle, seed: int, seconds: float = 1.0) -> float:
    """Per repetition, by what monitors of windows do: readings as power since the one before, begin to end."""
    device = Device(sensor, seed)
    device.draw(((0.5, IDLE_W),), 1)
    span = device.arm(cycle).run(seconds)
    device.draw(((1.0, IDLE_W),), 1)
    ((power, _),) = device.readings(span.start_ns - 500_000_000, span.end_ns + 500_000_000)
    found = PowerIntegral(power).joules(np.array([span.start_ns]), np.array([span.end_ns]))
    return float(found[0]) / span.rounds
