"""Replay of a record: an audit with its variants, or one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from magneton_dist.energy.replay.protocol import TIMES, Rules
from magneton_dist.energy.replay.run import OnProgress, Replays, replay_runs
from magneton_dist.errors import InputError, MeterError
from magneton_dist.meters import Meter, load_profile, open_meter, visible_gpus
from magneton_dist.records.store import RunRecord, load

CPU = "cpu"
WATTS = "h200"  # profile whose classes of operators say what is at stake


def replay(
    folder: Path, *, meter: str = "auto", devices: Sequence[str] = (), budget_s: float = 300.0,
    window_s: float | None = None, only: str = "", on_progress: OnProgress = lambda _: None,
) -> Replays:
    """Replay the operators and collectives of the record in `folder`; what is found is kept beside each run.

    Args:
        folder: of an audit, or of one run.
        meter: as in a configuration.
        devices: GPU UUIDs, or ``cpu``; default: the CPU for a run without GPUs, else all visible ones.
        budget_s: no replay is begun that would not fit, s.
        window_s: of each window, s; default: 10 s, or 0.3 s where nothing measures.
        only: a regular expression for names.
        on_progress: is told before each replay.

    Raises:
        InputError: there is no such record, nothing in it can be replayed, or an argument is wrong.
        MeterError: there is no GPU for a run on GPUs, or its meter fails.
    """
    try:
        re.compile(only)
    except re.error as error:
        do = "give a part of an operator's name"
        raise InputError(f"no regular expression: {error}", where=only, do=do) from error
    record = load(folder)
    if isinstance(record, RunRecord):
        runs: dict[str, Sequence[RunRecord]] = {record.manifest.variant: [record]}
    else:
        runs = {variant: list(repeats.values()) for variant, repeats in record.runs.items()}
    if not any(runs.values()):
        do = "see what `magneton-dist audit` says of it"
        raise InputError("no run in it was recorded to its end", where=str(folder), do=do)
    devices = list(dict.fromkeys(devices)) or _devices(runs)
    if CPU in devices and len(devices) > 1:
        raise InputError("cpu and GPUs at once", where="--device", do="replay on one kind of device at a time")
    profile = load_profile(meter.removeprefix("modelled:") if meter.startswith("modelled:") else WATTS)

    def opened(device: str) -> Meter:
        return open_meter(meter, device)[0]

    rules = None
    if window_s is not None:
        probe = opened(devices[0])
        rules = replace(Rules() if probe.provenance == "measured" else TIMES, window_s=window_s)
        probe.close()
    found = replay_runs(
        runs, opened, devices, profile, budget_s=budget_s, rules=rules, only=only, on_progress=on_progress
    )
    recorded = {rank.device for repeats in runs.values() for run in repeats for rank in run.manifest.ranks}
    elsewhere = recorded - set(devices)
    if elsewhere and CPU not in devices:
        found.notes.append(f"recorded on {', '.join(sorted(recorded))}, replayed on {', '.join(devices)}")
    return found


def _devices(runs: dict[str, Sequence[RunRecord]]) -> list[str]:
    """What this machine has of the kind that the runs used."""
    used = {rank.device for repeats in runs.values() for run in repeats for rank in run.manifest.ranks}
    if used <= {CPU}:
        return [CPU]
    gpus = list(visible_gpus(None).uuids)
    if not gpus:
        raise MeterError("no GPU here for a run on GPUs", where="replay", do="replay where it ran")
    return gpus
