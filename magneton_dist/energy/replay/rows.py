"""Candidates on the bench: processes that are kept, and rows out of what is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magneton_dist.energy.replay.bench import Bench, OneArm
from magneton_dist.energy.replay.plan import Candidate
from magneton_dist.energy.replay.power import steady_power
from magneton_dist.energy.replay.protocol import Floats, Rules, estimate, measure
from magneton_dist.energy.replay.results import REPLAYED
from magneton_dist.energy.replay.watch import MeterWatch
from magneton_dist.errors import InputError, MeterError
from magneton_dist.meters.meter import Meter
from magneton_dist.meters.profile import Watts

IDLE_S = 3.0  # for how long to watch the device idle

Row = dict[str, Any]


class Benches:
    """Processes by what they were started for, kept for the next candidate that wants the same."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._started: dict[tuple[str, int], tuple[Bench, list[str]]] = {}

    def __enter__(self) -> Benches:
        return self

    def __exit__(self, *_: object) -> None:
        for bench, _refused in self._started.values():
            bench.dismiss()  # all of them, before one is waited for
        for bench, _refused in self._started.values():
            bench.close()

    def devices_of(self, candidate: Candidate) -> list[str]:
        """Where its processes run."""
        return [self._devices[place % len(self._devices)] for place in range(max(1, candidate.ranks))]

    def of(self, candidate: Candidate) -> tuple[Bench, list[str]]:
        """Processes under its settings, and which of these could not be applied."""
        key = (candidate.settings.key, candidate.ranks)
        if key not in self._started:
            settings, on = candidate.settings, self.devices_of(candidate)
            backend = ("gloo" if "cpu" in on else "nccl") if candidate.ranks else ""
            bench = Bench(on, settings.environment, backend=backend)
            self._started[key] = bench, []
            self._started[key] = bench, bench.ask("settings", values=settings.switches)["refused"]
        return self._started[key]

    def drop(self, candidate: Candidate) -> None:
        """What it ran on is no longer to be relied on."""
        started = self._started.pop((candidate.settings.key, candidate.ranks), None)
        if started is not None:
            started[0].close()


def replay_together(
    group: Sequence[Candidate], benches: Benches, watch: MeterWatch, rules: Rules, left_s: float
) -> list[Row] | None:
    """Rows of `REPLAYED` of candidates that take turns, A B B A: the same call under different settings.

    Args:
        group: one candidate, or several of the same key.
        benches: processes.
        watch: meters of the devices that the group loads, and of no others.
        rules: how long and how often.
        left_s: no window is begun that would not fit into it.

    Returns:
        One row each, without figures and with the reason where it cannot be replayed; None where what the group
        takes does not fit.
    """
    ended_s = time.monotonic() + left_s
    rows = [_blank(candidate, benches, watch.meters) for candidate in group]
    arms: list[OneArm] = []
    columns: list[tuple[int, int | None]] = []  # of each candidate: its own arm, and that which only restores
    for candidate, row in zip(group, rows, strict=True):
        try:
            bench, refused = benches.of(candidate)
            made = bench.ask(candidate.question["do"], **candidate.question["with"])
        except (InputError, MeterError) as error:
            return _failed(rows, group, benches, error)
        row |= {"how": made["how"], "notes": "; ".join(f"setting not applied: {setting}" for setting in refused)}
        columns.append((len(arms), len(arms) + 1 if made["restores"] else None))
        arms += [OneArm(bench), OneArm(bench, bare=True)] if made["restores"] else [OneArm(bench)]

    def own(of_arms: Floats, place: int) -> Floats:
        """What candidate `place` costs itself, without what puts its inputs back."""
        whole, bare = columns[place]
        return of_arms[:, whole] if bare is None else of_arms[:, whole] - of_arms[:, bare]

    def ratio(of_arms: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log(own(of_arms, 0) / own(of_arms, 1)))

    figure: Callable[[Floats], Floats] = ratio if len(group) > 1 else lambda of_arms: own(of_arms, 0)
    each_s = len(arms) * (rules.window_s + rules.discard(watch.window_s))
    if ended_s - time.monotonic() < len(arms) * rules.warm_up_s + rules.fewest * each_s:
        return None
    try:
        idle_w = _idle_watts(watch, rules)
        within_s = ended_s - time.monotonic() - len(arms) * rules.warm_up_s
        series = measure(arms, watch, rules, figure, absolute=len(group) > 1, within_s=within_s)
    except (InputError, MeterError) as error:
        return _failed(rows, group, benches, error)
    said = [*series.notes, *(f"{n} windows: {why}" for why, n in series.rejected.items())]
    said += [f"by {series.source}"] if series.source else []
    for place, (candidate, row) in enumerate(zip(group, rows, strict=True)):
        seconds = estimate(own(series.seconds, place))
        figures = own(series.joules, place) if watch.measures else own(series.seconds, place)
        if not len(figures):
            row["notes"] = f"no window counts: {'; '.join(said)}"
            continue
        found = estimate(figures)
        row |= {
            "seconds": seconds.mean, "windows": len(figures), "temperature_c": series.temperature_c,
            "conclusive": len(figures) >= rules.fewest and found.half <= rules.half_width * abs(found.mean),
        }  # fmt: skip
        if watch.measures:
            row |= _measured(figures, seconds.mean, idle_w)
        elif candidate.watts is not None and all(meter.provenance == "modelled" for meter in watch.meters):
            row |= _modelled(seconds.mean * max(1, candidate.ranks), candidate.watts)
        turns = _turns(group, ratio(series.joules if watch.measures else series.seconds)) if len(group) > 1 else []
        row["notes"] = "; ".join(note for note in (row["notes"], *turns, *said) if note)
    return rows


def _turns(group: Sequence[Candidate], ratios: Floats) -> list[str]:
    """How the first two of a group compare, in words."""
    found = estimate(ratios)
    if not np.isfinite(found.half):
        return []
    low, mean, high = (float(np.exp(found.mean + sign * found.half)) for sign in (-1, 0, 1))
    one, other = (" and ".join(sorted(candidate.variants)) for candidate in group[:2])
    return [f"in turns, {one} takes {mean:.3f} ({low:.3f} to {high:.3f}) of {other}"]


def _blank(candidate: Candidate, benches: Benches, meters: Sequence[Meter]) -> Row:
    on = benches.devices_of(candidate)
    return dict.fromkeys(REPLAYED.columns) | {
        "key": candidate.key, "name": candidate.name, "kind": candidate.kind, "energy_kind": "unmeasured",
        "calls": max(candidate.calls.values()), "conclusive": False, "windows": 0, "inputs": candidate.inputs,
        "tensors": candidate.tensors, "notes": "",
        "meter": "; ".join(dict.fromkeys(meter.source for meter in meters)), "device": ", ".join(dict.fromkeys(on)),
    }  # fmt: skip


def _failed(
    rows: list[Row], group: Sequence[Candidate], benches: Benches, error: InputError | MeterError
) -> list[Row]:
    if isinstance(error, MeterError):  # a process died: who comes next gets a new one
        for candidate in group:
            benches.drop(candidate)
    return [row | {"notes": error.what} for row in rows]


def _measured(joules: Floats, seconds: float, idle_w: float | None) -> dict[str, Any]:
    found = estimate(joules)
    if len(joules) < 2:
        return {}
    return {
        "joules": found.mean, "low_j": found.mean - found.half, "high_j": found.mean + found.half,
        "net_j": None if idle_w is None else found.mean - idle_w * seconds, "energy_kind": "replayed",
    }  # fmt: skip


def _modelled(seconds: float, watts: Watts) -> dict[str, Any]:
    return {
        "joules": watts.nominal * seconds, "low_j": watts.low * seconds, "high_j": watts.high * seconds,
        "energy_kind": "modelled",
    }  # fmt: skip


def _idle_watts(watch: MeterWatch, rules: Rules) -> float | None:
    """What the devices draw together while the processes hold their contexts and do nothing."""
    if not watch.measures:
        return None
    start_ns = time.monotonic_ns()
    discard_s = rules.discard(watch.window_s)
    time.sleep(discard_s + min(IDLE_S, rules.window_s))
    end_ns = time.monotonic_ns()
    steady = [(start_ns + round(discard_s * 1e9), end_ns)]
    devices = [steady_power(power, counters, steady) for power, counters in watch.readings(start_ns, end_ns)]
    known = [device.watts for device in devices if device is not None]
    return sum(known) if len(known) == len(devices) else None
