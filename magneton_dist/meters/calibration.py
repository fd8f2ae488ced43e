"""What a meter and its device are like: update period, lag and window, and the watts of doing nothing.

A load with known edges of random length is watched through the meter, and the sensor is what explains the readings
best. The result is a profile: its sensor makes the joules of states out of a run's measured watts (``energy:
{profile: FILE}``, `energy.deconvolution`), or a run is modelled with it (``meter: modelled:FILE``). Its gain stays
1: no meter knows its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.errors import MeterError
from magneton_dist.meters.load import NO_BOOST, Load
from magneton_dist.meters.meter import Meter
from magneton_dist.meters.profile import Profile, StateKey, Watts
from magneton_dist.meters.sampler import Sampler
from magneton_dist.meters.sensor import Floats, Sensor, fit_sensor

_LAGS_S = tuple(np.arange(0.0, 0.31, 0.02).tolist())
_WINDOWS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0)
_PULSE_S = (0.1, 0.6)  # shortest and longest: no sensor is in pace with all of them
_EXPLAINED = 0.9  # of the readings' variance; below it, they follow something else than the load
_MIN_UPDATES = 40


@dataclass(frozen=True)
class Durations:
    """How long to look.

    Attributes:
        settle_s: left out after every change, s.
        state_s: each steady state, s.
        pulses_s: the load with known edges, s.
    """

    settle_s: float = 3.0
    state_s: float = 8.0
    pulses_s: float = 40.0


def calibrate(
    meter: Meter, load: Load, durations: Durations, say: Callable[[str], None], seed: int = 0
) -> Profile:
    """Measure a device's idle watts and its meter's sensor.

    Args:
        meter: of the device, with its own updates; nothing else may run on the device.
        load: on the same device.
        durations: of each part.
        say: is told what is being measured.
        seed: of the pulses' lengths.

    Raises:
        MeterError: the meter fails, or its readings do not follow the load.
    """
    # fast enough to see every update of a sensor that does not tell when it updates
    sampler = Sampler(meter, max(meter.period_s / 10, 0.002))
    spans: dict[str, tuple[int, int]] = {}

    def steady(name: str, act: Callable[[float], None] = time.sleep) -> None:
        say(name)
        start_ns = time.monotonic_ns()
        act(durations.settle_s + durations.state_s)
        spans[name] = (start_ns + round(durations.settle_s * 1e9), time.monotonic_ns())

    sampler.start()
    try:
        steady("bare idle")
        load.start(boost=False)
        steady(f"context idle, {NO_BOOST}=1")
        load.stop()
        load.start(boost=True)
        steady("context idle")
        steady("spin", load.spin)
        say("sensor")
        edges_s = np.array(load.pulses(_pulse_lengths(durations.pulses_s, seed)))
        time.sleep(durations.settle_s)  # for what the sensor still has to tell
    finally:
        load.stop()
        power, _ = sampler.stop()
    try:
        sensor, busy_w = measured_sensor(_updates(power), edges_s)
        seen = {name: _steady_watts(power, span, name) for name, span in spans.items()}
    except MeterError as error:
        failed = power["watts"].null_count()
        if not failed:
            raise
        # its own words come before what is missing for them
        what = f"{failed} of {len(power)} readings failed: {'; '.join(sampler.faults)}"
        raise MeterError(what, where="calibrate", do="see `magneton-dist doctor`") from error
    return _profile(meter, sampler, sensor, seen, busy_w)


def measured_sensor(updates: pl.DataFrame, edges_s: Floats) -> tuple[Sensor, float]:
    """The sensor behind readings of a load that is busy and idle by turns, and the watts while busy.

    Args:
        updates: one row per update of the sensor: t_ns, watts.
        edges_s: beginnings of busy and idle by turns, and the end of the last, monotonic s.

    Raises:
        MeterError: too few updates, or they do not follow the load.
    """
    t_s, watts = updates["t_ns"].to_numpy() / 1e9, updates["watts"].to_numpy()
    inside = (t_s >= edges_s[0] + max(_LAGS_S) + max(_WINDOWS_S)) & (t_s <= edges_s[-1])
    t_s, watts = t_s[inside] - edges_s[0], watts[inside]
    if len(t_s) < _MIN_UPDATES:
        what = f"the meter updated {len(t_s)} times during the load, at least {_MIN_UPDATES} are needed"
        raise MeterError(what, where="calibrate", do="measure longer, or use a faster meter")
    edges_s = edges_s - edges_s[0]
    labels = np.eye(2)[np.arange(len(edges_s) - 1) % 2]
    period_s = float(np.median(np.diff(t_s)))
    guess = Sensor(period_s=period_s, window_s=period_s)
    sensor = fit_sensor(t_s, watts, edges_s, labels, guess, {"lag_s": _LAGS_S, "window_s": _WINDOWS_S})
    design = sensor.response(t_s, edges_s, labels)
    levels = np.linalg.lstsq(design, watts)[0]
    explained = 1 - float(np.var(watts - design @ levels) / np.var(watts)) if np.var(watts) else 0.0
    if explained < _EXPLAINED or levels[0] <= levels[1]:
        what = f"readings do not follow the load: it explains {explained:.0%} of their variance"
        raise MeterError(what, where="calibrate", do="let nothing else run on the device, and look at it with doctor")
    rounded = {"lag_s": round(sensor.lag_s, 4), "window_s": round(sensor.window_s, 4), "period_s": round(period_s, 4)}
    return sensor.model_copy(update=rounded), float(levels[0])


def _pulse_lengths(seconds: float, seed: int) -> list[float]:
    pulses = 2 * max(1, round(seconds / sum(_PULSE_S)))
    return [float(length) for length in np.random.default_rng(seed).uniform(*_PULSE_S, pulses)]


def _updates(power: pl.DataFrame) -> pl.DataFrame:
    """Readings that differ from the one before: a sensor without timestamps repeats itself until it updates."""
    return power.drop_nulls("watts").filter((pl.col("watts") != pl.col("watts").shift(1)).fill_null(True))


def _steady_watts(power: pl.DataFrame, span_ns: tuple[int, int], name: str) -> Watts:
    watts = power.filter(pl.col("t_ns").is_between(*span_ns))["watts"].drop_nulls().to_numpy()
    if not len(watts):
        raise MeterError(f"no reading of {name}", where="calibrate", do="measure longer")
    low, high = np.quantile(watts, (0.05, 0.95))
    mean = float(watts.mean())
    source = f"measured: {name}, {len(watts)} readings, 90 % of them within low and high"
    return _watts(mean, min(low, mean), max(high, mean), source)


def _watts(nominal: float, low: float, high: float, source: str) -> Watts:
    return Watts(nominal=round(nominal, 2), low=round(float(low), 2), high=round(float(high), 2), source=source)


def _profile(meter: Meter, sampler: Sampler, sensor: Sensor, seen: dict[str, Watts], busy_w: float) -> Profile:
    bare, spin = seen["bare idle"], seen["spin"]
    idle, dropped = seen["context idle"], seen[f"context idle, {NO_BOOST}=1"]
    busy = max(busy_w, spin.nominal)
    context = _watts(
        idle.nominal, min(idle.low, dropped.low), max(idle.high, dropped.high),
        f"measured: {idle.nominal} W as drivers have it, {dropped.nominal} W with {NO_BOOST}=1",
    )  # fmt: skip
    transfer = _watts(
        (spin.nominal + busy) / 2, spin.low, busy, "not measured: anything from a spinning kernel to a busy device"
    )
    compute = _watts(busy, min(spin.nominal, busy), busy, "measured: dense matrix products; other kernels draw less")
    watts: dict[StateKey, Watts] = {
        "bare_idle": bare, "context_idle": context, "wait": spin, "transfer": transfer, "compute": compute,
    }  # fmt: skip
    cautions = ["Measured once, on one device, at its temperature of that day; the meter's gain is not known."]
    if sampler.throttled:
        cautions.append(f"Throttled meanwhile: {', '.join(sampler.throttled)}.")
    if sampler.shared:
        cautions.append(f"Not alone: {sampler.shared}.")
    if sampler.faults:
        cautions.append(f"Readings failed meanwhile: {'; '.join(sampler.faults)}.")
    # readings that are means since the one before have no window to undo
    named = sensor.model_copy(update={"name": meter.sensor}) if meter.window_ns else None
    device = f"{meter.device}, {meter.source}"
    return Profile(name="measured", device=device, caution=" ".join(cautions), watts=watts, sensor=named)
