"""A simulated sensor: published faults on a power that is known, so that what corrects them can be tested."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import polars as pl

from magneton_dist.meters.meter import Conditions, Reading
from magneton_dist.meters.sensor import Floats, Sensor
from magneton_dist.records.audit import EnergyKind
from magneton_dist.records.schema import POWER

# arXiv 2312.02741: H100 and A100 instant power; RTX 3090; V100; average power since Ampere; A100's gain error.
PUBLISHED = {
    "25/100 ms": Sensor(period_s=0.1, window_s=0.025, lag_s=0.03),
    "100/100 ms": Sensor(period_s=0.1, window_s=0.1, lag_s=0.03),
    "10/20 ms": Sensor(period_s=0.02, window_s=0.01, lag_s=0.01),
    "1000/100 ms": Sensor(period_s=0.1, window_s=1.0, lag_s=0.03),
    "25/100 ms, gain -5.5 %": Sensor(period_s=0.1, window_s=0.025, lag_s=0.03, gain=0.945),
}

Trace = tuple[Floats, Floats]  # edges in s on the monotonic clock, and watts between them


class SimulatedMeter:
    """Reads a known power through a sensor's faults, as a meter.

    Args:
        sensor: its faults.
        trace: gives the power so far; the last value goes on until now.
        noise_w: standard deviation of a reading.
        seed: of the noise.
    """

    name = "simulated"
    provenance: EnergyKind = "modelled"
    source = "simulated sensor on a known power"
    device = "simulated"
    sensor = "simulated"
    counter = ""

    def __init__(self, sensor: Sensor, trace: Callable[[], Trace], noise_w: float = 0.0, seed: int = 0) -> None:
        self.period_s = sensor.period_s
        self.window_ns = round(sensor.window_s * 1e9)
        self._sensor, self._trace = sensor, trace
        self._noise_w, self._random = noise_w, np.random.default_rng(seed)
        self._last = Reading(0, None, None, reason="not updated yet")

    def read(self) -> Reading:
        """The reading of the last update, with its time."""
        tick_ns = math.floor(time.monotonic_ns() / 1e9 / self.period_s) * round(self.period_s * 1e9)
        if tick_ns > self._last.t_ns:
            edges_s, watts = self._trace()
            mean_w = self._sensor.response(np.array([tick_ns / 1e9]), edges_s, watts[:, None])[0, 0]
            self._last = Reading(tick_ns, float(mean_w + self._noise_w * self._random.standard_normal()), None)
        return self._last

    def conditions(self) -> Conditions:
        """A simulation has no temperature."""
        return Conditions()

    def close(self) -> None:
        """Nothing to release."""


def simulated_power(sensor: Sensor, trace: Trace, noise_w: float = 0.0, seed: int = 0) -> pl.DataFrame:
    """Power table (schema `POWER`) of every update of `sensor` whose window lies in `trace`.

    The first update falls at a random moment of the period; readings have whole milliwatts.
    """
    edges_s, watts = trace
    random = np.random.default_rng(seed)
    first_s = edges_s[0] + sensor.reach_s + random.uniform(0, sensor.period_s)
    t_s = np.arange(first_s, edges_s[-1], sensor.period_s)
    shown = sensor.response(t_s, edges_s, watts[:, None])[:, 0] + noise_w * random.standard_normal(len(t_s))
    return pl.DataFrame(
        {
            "device": "simulated", "t_ns": (t_s * 1e9).astype(np.int64), "watts": np.round(shown, 3),
            "sensor": "simulated", "window_ns": round(sensor.window_s * 1e9),
        },
        schema=POWER.schema,
    )  # fmt: skip
