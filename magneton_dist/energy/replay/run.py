"""Replay what a record's operators and collectives cost, most joules at stake first, within a budget of time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import polars as pl

from magneton_dist.energy.replay.plan import Candidate, candidates, groups_across_hosts
from magneton_dist.energy.replay.protocol import TIMES, Rules
from magneton_dist.energy.replay.results import REPLAYED, one_at_a_time, read_replayed, write_replayed
from magneton_dist.energy.replay.rows import Benches, Row, replay_together
from magneton_dist.energy.replay.watch import MeterWatch
from magneton_dist.errors import InputError
from magneton_dist.meters.meter import Meter
from magneton_dist.meters.profile import Profile
from magneton_dist.records.inputs import forget_inputs
from magneton_dist.records.store import RankRecord, RunRecord

START_S = 5.0  # of processes
_AS_IT_RAN = "replay on devices as it ran on"
MOST_RANKS = 8  # of a collective on CPUs, or as many as there are cores

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

    rows: list[tuple[Row, set[str]]] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


def replay_runs(
    runs: Mapping[str, Sequence[RunRecord]], open_meter: OpenMeter, devices: Sequence[str], profile: Profile,
    *, budget_s: float, rules: Rules | None = None, only: str = "", on_progress: OnProgress = lambda _: None,
) -> Replays:
    """Replay what `runs` ran, and write what was found beside each run.

    Args:
        runs: repeats of each variant; the lowest rank that traced a step, in the first that has one, is replayed.
        open_meter: gives a meter of a device.
        devices: of this machine, ``cpu`` or GPU UUIDs, for the ranks of a collective.
        profile: watts by class: what is at stake, and the joules where nothing measures.
        budget_s: no replay is begun that would not fit.
        rules: how long and how often; default: the full protocol, or `TIMES` where nothing measures.
        only: a regular expression for the names of operators and collectives.
        on_progress: is told before each.

    Raises:
        InputError: nothing was traced, the budget is too small for a single one, or another replay is at it.
        MeterError: a meter fails.
        RecordError: the record, or what was replayed before, is damaged.
    """
    ended_s = time.monotonic() + budget_s
    across = {variant: groups_across_hosts(repeats[0]) for variant, repeats in runs.items() if repeats}
    every = candidates(_ranks(runs), profile, across)
    wanted = [c for c in every if re.search(only, c.name) and _possible(c, devices)]
    found = Replays(notes=_left_out(every, devices, only))
    if not wanted and found.notes:
        do = "give another --only" if all(c.hosts for c in every if re.search(only, c.name)) else _AS_IT_RAN
        raise InputError(found.notes[0], where="--device", do=do)
    if not wanted:
        why = "matches nothing that was traced" if only else "holds no operators of a traced step"
        raise InputError(why, where=only or "record", do="set capture.graph_steps, or give another --only")
    done: set[int] = set()
    with ExitStack() as held:
        folders = [run.folder for repeats in runs.values() for run in repeats]
        found.notes.extend(held.enter_context(one_at_a_time(folders)))
        meters = {device: held.enter_context(closing(open_meter(device))) for device in dict.fromkeys(devices)}
        benches = held.enter_context(Benches(devices))
        for group in _groups(wanted):
            # what other devices draw meanwhile is none of its joules
            watch = MeterWatch([meters[device] for device in dict.fromkeys(benches.devices_of(group[0]))])
            chosen = rules or (Rules() if watch.measures else TIMES)
            left_s = ended_s - time.monotonic()
            needed_s = START_S + chosen.seconds(len(group), watch.window_s)
            if left_s < needed_s:
                break
            on_progress(Progress(len(found.rows), len(wanted), group[0].name, left_s))
            with watch:
                rows = replay_together(group, benches, watch, chosen, left_s)
            found.notes.extend(fault for fault in watch.faults if fault not in found.notes)
            if rows is None:  # another one may fit
                continue
            for candidate, row in zip(group, rows, strict=True):
                found.rows.append((row, candidate.variants))
                _keep(candidate, row, runs)
                done.add(id(candidate))
        if not found.rows:
            what = f"one replay takes {needed_s:.0f} s or more, once its processes have started"
            raise InputError(what, where="--budget", do="give more, or a shorter --window")
        _forget(runs, [candidate for candidate in every if id(candidate) not in done], found)
    return replace(found, left_out=len(wanted) - len(found.rows))


def _groups(wanted: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates of one key take turns; in the order of the first of each."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in wanted:
        groups.setdefault(candidate.key, []).append(candidate)
    return list(groups.values())


def _keep(candidate: Candidate, row: Row, runs: Mapping[str, Sequence[RunRecord]]) -> None:
    """Write the row beside every run of the variants that make these calls."""
    for variant in candidate.variants:
        calls = {**row, "calls": candidate.calls.get(variant, 0.0)}
        for run in runs[variant]:
            write_replayed(run.folder, pl.DataFrame([calls], schema=REPLAYED.schema))


def _forget(runs: Mapping[str, Sequence[RunRecord]], left_out: Sequence[Candidate], found: Replays) -> None:
    """Delete recorded inputs, which are user data, once all that works on them was replayed, now or before."""
    before = {
        variant: {
            key for run in repeats[:1]
            for key in read_replayed(run.folder).filter(pl.col("inputs") == "recorded")["key"]
        }
        for variant, repeats in runs.items()
    }
    waiting = {
        candidate.name for candidate in left_out
        if candidate.inputs == "recorded" and any(candidate.key not in before[v] for v in candidate.variants)
    }  # fmt: skip
    if waiting:
        found.notes.append(f"recorded inputs are kept for {', '.join(sorted(waiting))}: replay again")
        return
    for run in (run for repeats in runs.values() for run in repeats):
        for rank in run.ranks.values():
            forget_inputs(rank.folder)


def _ranks(runs: Mapping[str, Sequence[RunRecord]]) -> dict[str, RankRecord]:
    """Of each variant, the lowest rank that traced a step, in the first run that has one."""
    found = {}
    for variant, repeats in runs.items():
        traced = (record for run in repeats for record in run.ranks.values() if record.ops.height)
        if (first := next(traced, None)) is not None:
            found[variant] = RankRecord(first.folder)  # a record of its own: nothing keeps its tables
    return found


def _possible(candidate: Candidate, devices: Sequence[str]) -> bool:
    on_cpu = list(devices) == ["cpu"]
    room = max(MOST_RANKS, os.cpu_count() or 1) if on_cpu else len(devices)
    return candidate.on_cpu == on_cpu and candidate.ranks <= room and not candidate.hosts


def _left_out(every: Sequence[Candidate], devices: Sequence[str], only: str) -> list[str]:
    wanted = [c for c in every if re.search(only, c.name)]
    impossible = [c for c in wanted if not c.hosts and not _possible(c, devices)]
    across = [c for c in wanted if c.hosts]
    notes = []
    if impossible:
        notes.append(f"{len(impossible)} kinds of calls need other devices, or more, than {', '.join(devices)}")
    if across:
        hosts = ", ".join(sorted({host for c in across for host in c.hosts}))
        notes.append(
            f"{len(across)} kinds of collectives ran across hosts ({hosts}) and are not replayed: one machine has no "
            "network between them, and would show the joules of another transfer"
        )
    return notes
