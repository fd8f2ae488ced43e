"""Audits of traces that profilers left: import, then analyse as any record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from magneton_dist import audits
from magneton_dist.config import Compare
from magneton_dist.detect.counterfactuals import FLOOR_SHARE
from magneton_dist.errors import RecordError
from magneton_dist.importers.rank_files import rank_pattern, trace_files
from magneton_dist.importers.record import VARIANT, import_traces
from magneton_dist.importers.straggler import is_timeline, read_timeline
from magneton_dist.importers.workers import write_workers
from magneton_dist.meters.profile import Profile, profile_of
from magneton_dist.pipeline import MODELLED
from magneton_dist.records.audit import Counterfactual
from magneton_dist.records.manifest import MeterUsed
from magneton_dist.timeline.replay import Replay

SHOWN_STEPS = 4  # of a timeline that say which worker or operation is slow


def audit_traces(
    given: Sequence[str | Path],
    out: Path,
    *,
    profile: Profile | None = None,
    rank_regex: str | None = None,
    strict: bool = False,
    on_file: Callable[[int, int], None] = lambda done, of: None,
) -> audits.Outcome:
    """Audit traces of one job.

    Args:
        given: files, folders or globs; one file per rank.
        out: folder in which the record ``<name>-<UTC>`` is made.
        profile: the watts of every rank; default: the profile of its device's type where there is one.
        rank_regex: its first group is the rank in a file's path.
        strict: refuse a file for the first event that cannot be read.
        on_file: told how many files of how many have been read.

    Raises:
        InputError: there is no such file, or no trace among them.
    """
    pattern, files = rank_pattern(rank_regex), trace_files(given)
    now = datetime.now(UTC)
    first = Path(str(given[0]))
    name = first.name if first.is_dir() and first.name else files[0].name.partition(".")[0]
    folder = _new_folder(out / f"{name}-{now.strftime('%Y%m%dT%H%M%SZ')}")

    def meter_of(device: str | None) -> MeterUsed:
        return meter_for(device, profile)

    timelines = [path for path in files if is_timeline(path)]
    notes: list[str] = []
    saved: list[Counterfactual] = []
    try:
        if timelines:
            notes, saved = _import_timeline(timelines, folder / VARIANT / "0", name, now, meter_of(None))
        else:
            import_traces(
                files, folder / VARIANT / "0", name=name, started=now.isoformat(timespec="seconds"),
                meter_of=meter_of, pattern=pattern, strict=strict, on_file=lambda done: on_file(done, len(files)),
            )  # fmt: skip
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    audits.Settings(
        name=name, started=now.isoformat(timespec="seconds"), baseline=VARIANT, compare=Compare(), profile=profile
    ).write(folder)
    outcome = audits.audit(folder)
    audit = msgspec.structs.replace(outcome.audit, notes=[*notes, *outcome.audit.notes])
    if saved:
        audit = msgspec.structs.replace(audit, counterfactuals=saved)
    return replace(outcome, audit=audit)


def _import_timeline(
    timelines: list[Path], run: Path, name: str, now: datetime, meter: MeterUsed
) -> tuple[list[str], list[Counterfactual]]:
    """Write the record of a timeline of operations; what stragglers cost the job, in words and figures."""
    path = timelines[0]
    if len(timelines) > 1:
        what = f"is the timeline of one job, and {timelines[1].name} that of another"
        raise RecordError(what, where=str(path), do="give one of them")
    operations, dropped = read_timeline(path)
    write_workers(operations, run, name=name, started=now.isoformat(timespec="seconds"), meter=meter)
    replay = Replay(operations)
    some = range(0, replay.steps, max(1, replay.steps // SHOWN_STEPS))
    notes = [f"{path.name}: dropped {dropped} operation(s) with negative durations"] if dropped else []
    notes.append(f"steps take {replay.slowdown():.3f} times what they would were no worker slower than the mean")
    for column, (_, what) in _KINDS.items():
        alone = {v: replay.slowdown(pl.col(column) == v, some) for v in operations[column].unique().sort()}
        worst = max(alone, key=lambda v: alone[v])
        notes.append(f"slow {what} {worst} alone makes them take {alone[worst]:.3f} times that (by {len(some)} steps)")
    for what, slow in (
        ("the last pipeline stage", replay.last_stage()),
        ("the slowest 3 % of the workers", replay.slowest_workers(steps=some)),
    ):
        notes.append(f"{what} explains {round(100 * replay.explained(slow))} % of what they take more")
    return notes, _saved(replay, some)


_KINDS: dict[str, tuple[Literal["replica", "stage", "operation"], str]] = {
    "dp": ("replica", "data-parallel rank"), "stage": ("stage", "pipeline stage"), "op": ("operation", "operation"),
}  # fmt: skip


def _saved(replay: Replay, some: Sequence[int]) -> list[Counterfactual]:
    """What the steps would take were a rank, a stage or an operation as fast as the mean, by some of them."""
    took = replay.slowdown(steps=some)
    whole_s = float(replay.step_seconds(replay.durations_s, some).mean()) * replay.steps
    tried: list[tuple[str, Literal["ranks", "replica", "stage", "operation"], float]] = [
        ("all workers alike", "ranks", 1.0)
    ]
    for column, (kind, what) in _KINDS.items():
        for value in replay.operations[column].unique().sort():
            tried.append((f"{what} {value}", kind, replay.slowdown(pl.col(column) != value, some)))
    found = [
        Counterfactual(what, kind, VARIANT, whole_s * then / took, whole_s * (1 - then / took), 1 - then / took)
        for what, kind, then in tried
        if 1 - then / took >= FLOOR_SHARE
    ]
    return sorted(found, key=lambda c: (c.kind != "ranks", -c.saved_s))


def _new_folder(wanted: Path) -> Path:
    """`wanted`, or the first free name after it, made."""
    n = 1
    folder = wanted
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            n += 1
            folder = wanted.with_name(f"{wanted.name}-{n}")


def meter_for(device: str | None, profile: Profile | None) -> MeterUsed:
    """Where the watts of a type of device come from: a trace holds none, so from a profile or nowhere."""
    what = device or "a device that the trace does not name"
    profile = profile or profile_of(what)
    if profile is not None:
        return MeterUsed(
            f"{MODELLED}{profile.name}", "modelled",
            f"modelled: {profile.device} by state, profile {profile.name}, for {what}. {profile.caution.rstrip('.')}",
            reason="a trace holds no power",
        )  # fmt: skip
    return MeterUsed("null", "unmeasured", f"unmeasured: a trace holds no power, and there is no profile of {what}")
