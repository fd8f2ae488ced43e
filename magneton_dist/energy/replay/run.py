"""Replay what a record's operators and collectives cost, most joules at stake first, within a budget of time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from magneton_dist.energy.replay.bench import Bench, OneArm
from magneton_dist.energy.replay.plan import Candidate, candidates
from magneton_dist.energy.replay.power import steady_power
from magneton_dist.energy.replay.protocol import (
    TIMES,
    Floats,
    Rules,
    beyond_the_last,
    estimate,
    first_arm,
    measure,
)
from magneton_dist.energy.replay.results import REPLAYED, write_replayed
from magneton_dist.energy.replay.watch import MeterWatch
from magneton_dist.errors import InputError, MeterError
from magneton_dist.meters.meter import Meter
from magneton_dist.meters.profile import Profile, Watts
from magneton_dist.records.inputs import forget_inputs
from magneton_dist.records.store import RankRecord, RunRecord

START_S = 5.0  # of processes
MOST_RANKS = 8  # of a collective on CPUs, or as many as there are cores
IDLE_S = 3.0  # for how long to watch the device idle

OpenMeter = Callable[[str], Meter]  # device -> its meter
OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """How far it is: `done` of `planned`, what comes now, and the time left of the budget."""

    done: int
    planned: int
    name: str
    left_s: float


@dataclass(frozen=True)
class Replays:
    """What came of it.

    Attributes:
        rows: `REPLAYED`, most joules at stake first, with the variants that run each.
        left_out: candidates that the budget did not reach.
        notes: what a reader should know.
    """

    rows: list[tuple[dict[str, Any], set[str]]] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


def replay_runs(
    runs: Mapping[str, Sequence[RunRecord]], open_meter: OpenMeter, devices: Sequence[str], profile: Profile,
    *, budget_s: float, rules: Rules | None = None, only: str = "", on_progress: OnProgress = lambda _: None,
) -> Replays:
    """Replay what `runs` ran, and write what was found beside each run.

    Args:
        runs: repeats of each variant; the lowest rank that traced a step in the first of them is what is replayed.
        open_meter: gives a meter of a device.
        devices: of this machine, ``cpu`` or GPU UUIDs, for the ranks of a collective.
        profile: watts by class: what is at stake, and the joules where nothing measures.
        budget_s: no replay is begun that would not fit.
        rules: how long and how often; default: the full protocol, or `TIMES` where nothing measures.
        only: a regular expression for the names of operators and collectives.
        on_progress: is told before each.

    Raises:
        InputError: nothing was traced, or the budget is too small for a single one.
        MeterError: a meter fails.
    """
    ended_s = time.monotonic() + budget_s
    every = candidates(_ranks(runs), profile)
    wanted = [c for c in every if re.search(only, c.name) and _possible(c, devices)]
    if not wanted:
        why = "matches nothing that was traced" if only else "holds no operators of a traced step"
        raise InputError(why, where=only or "record", do="set capture.graph_steps, or give another --only")
    found = Replays(notes=_left_out(every, devices, only))
    meters = [open_meter(device) for device in devices]
    try:
        with MeterWatch(meters) as watch, _Benches(devices) as benches:
            rules = rules or (Rules() if watch.measures else TIMES)
            for done, candidate in enumerate(wanted):
                limited = _within(rules, ended_s - time.monotonic(), watch.window_s)
                if limited is None:
                    break
                on_progress(Progress(done, len(wanted), candidate.name, ended_s - time.monotonic()))
                row = _row(candidate, benches, watch, meters, limited)
                found.rows.append((row, candidate.variants))
                for variant in candidate.variants:
                    calls = {**row, "calls": candidate.calls.get(variant, 0.0)}
                    for run in runs[variant]:
                        write_replayed(run.folder, pl.DataFrame([calls], schema=REPLAYED.schema))
            found.notes.extend(watch.faults)
    finally:
        for meter in meters:
            meter.close()
    if not found.rows:
        needed = START_S + rules.seconds(1, watch.window_s)
        raise InputError(f"one replay takes {needed:.0f} s", where="--budget", do="give more, or a shorter --window")
    _forget(runs, wanted[len(found.rows) :], found)
    return replace(found, left_out=len(wanted) - len(found.rows))


def _forget(runs: Mapping[str, Sequence[RunRecord]], left_out: Sequence[Candidate], found: Replays) -> None:
    """Delete recorded inputs, which are user data, once what works on them was replayed."""
    waiting = {candidate.name for candidate in left_out if candidate.inputs == "recorded"}
    if waiting:
        found.notes.append(f"recorded inputs are kept for {', '.join(sorted(waiting))}: replay again")
        return
    for run in (run for repeats in runs.values() for run in repeats):
        for rank in run.ranks.values():
            forget_inputs(rank.folder)


def _ranks(runs: Mapping[str, Sequence[RunRecord]]) -> dict[str, RankRecord]:
    """Of each variant, the lowest rank that traced a step in its first run."""
    found = {}
    for variant, repeats in runs.items():
        for record in repeats[0].ranks.values():
            if record.ops.height:
                # a record of its own: nothing keeps its tables
                found[variant] = RankRecord(record.folder)
                break
    return found


def _possible(candidate: Candidate, devices: Sequence[str]) -> bool:
    on_cpu = list(devices) == ["cpu"]
    room = max(MOST_RANKS, os.cpu_count() or 1) if on_cpu else len(devices)
    return candidate.on_cpu == on_cpu and candidate.ranks <= room


def _left_out(every: Sequence[Candidate], devices: Sequence[str], only: str) -> list[str]:
    impossible = [c for c in every if re.search(only, c.name) and not _possible(c, devices)]
    if not impossible:
        return []
    return [f"{len(impossible)} kinds of calls need other devices, or more, than {', '.join(devices)}"]


def _within(rules: Rules, left_s: float, sensor_window_s: float) -> Rules | None:
    """`rules` with as many windows at most as fit; None when the fewest do not."""
    each_s = rules.window_s + rules.discard(sensor_window_s)
    most = int((left_s - START_S - rules.warm_up_s) / each_s)
    return None if most < rules.fewest else replace(rules, most=min(rules.most, most))


class _Benches:
    """Processes by what they were started for, kept for the next candidate that wants the same."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._started: dict[tuple[str, int], tuple[Bench, list[str]]] = {}

    def __enter__(self) -> _Benches:
        return self

    def __exit__(self, *_: object) -> None:
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


def _row(
    candidate: Candidate, benches: _Benches, watch: MeterWatch, meters: Sequence[Meter], rules: Rules
) -> dict[str, Any]:
    """One row of `REPLAYED`; what cannot be replayed has none but its reason."""
    on = benches.devices_of(candidate)
    row: dict[str, Any] = dict.fromkeys(REPLAYED.columns) | {
        "key": candidate.key, "name": candidate.name, "kind": candidate.kind, "energy_kind": "unmeasured",
        "calls": max(candidate.calls.values()), "conclusive": False, "windows": 0, "inputs": candidate.inputs,
        "tensors": candidate.tensors,
        "meter": "; ".join(dict.fromkeys(meter.source for meter in meters)), "device": ", ".join(dict.fromkeys(on)),
    }  # fmt: skip
    try:
        bench, refused = benches.of(candidate)
        made = bench.ask(candidate.question["do"], **candidate.question["with"])
        arms = [OneArm(bench), OneArm(bench, bare=True)] if made["restores"] else [OneArm(bench)]
        figure = beyond_the_last if made["restores"] else first_arm
        idle_w = _idle_watts(watch, rules)
        series = measure(arms, watch, rules, figure)
    except InputError as error:
        return row | {"notes": error.what}
    except MeterError as error:  # a process died: the next candidate gets a new one
        benches.drop(candidate)
        return row | {"notes": error.what}
    seconds = estimate(figure(series.seconds)).mean
    notes = [*series.notes, *(f"{n} windows: {why}" for why, n in series.rejected.items())]
    notes += [f"setting not applied: {setting}" for setting in refused]
    row |= {
        "seconds": seconds, "conclusive": series.conclusive, "windows": len(series.joules), "how": made["how"],
        "temperature_c": series.temperature_c,
    }  # fmt: skip
    if watch.measures:
        row |= _measured(figure(series.joules), seconds, idle_w)
        notes += [f"by {series.source}"] if series.source else []
    elif candidate.watts is not None and all(meter.provenance == "modelled" for meter in meters):
        row |= _modelled(seconds * max(1, candidate.ranks), candidate.watts)
    return row | {"notes": "; ".join(notes)}


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
