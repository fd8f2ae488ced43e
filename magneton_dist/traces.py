"""Audits of traces that profilers left: import, then analyse as any record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from magneton_dist import audits
from magneton_dist.config import Compare
from magneton_dist.errors import InputError, RecordError
from magneton_dist.importers.rank_files import rank_pattern, trace_files
from magneton_dist.importers.record import VARIANT, import_traces
from magneton_dist.importers.straggler import is_timeline, read_timeline
from magneton_dist.importers.workers import write_workers
from magneton_dist.meters.profile import Profile, profile_of
from magneton_dist.pipeline import MODELLED
from magneton_dist.records.manifest import MeterUsed


def audit_traces(
    given: Sequence[str | Path],
    out: Path,
    *,
    profile: Profile | None = None,
    rank_regex: str | None = None,
    strict: bool = False,
) -> audits.Outcome:
    """Make the record of traces of one job, and audit it. Arguments and errors are those of `record_traces`."""
    return audits.audit(record_traces(given, out, profile=profile, rank_regex=rank_regex, strict=strict))


def record_traces(
    given: Sequence[str | Path],
    out: Path,
    *,
    profile: Profile | None = None,
    rank_regex: str | None = None,
    strict: bool = False,
    on_file: Callable[[int, int], None] = lambda done, of: None,
) -> Path:
    """Write the record of traces of one job; returns its folder. Where that fails, nothing is left.

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
    first = Path(str(given[0])).resolve()
    name = first.name if first.is_dir() and first.name else files[0].name.partition(".")[0]
    folder = _new_folder(out / f"{name}-{now.strftime('%Y%m%dT%H%M%SZ')}")

    def meter_of(device: str | None) -> MeterUsed:
        return meter_for(device, profile)

    timelines = [path for path in files if is_timeline(path)]
    try:
        if timelines:
            others = [path for path in files if path not in timelines]
            _import_timeline(timelines, others, folder / VARIANT / "0", name, now, meter_of(None), strict=strict)
        else:
            import_traces(
                files, folder / VARIANT / "0", name=name, started=now.isoformat(timespec="seconds"),
                meter_of=meter_of, pattern=pattern, strict=strict, on_file=lambda done: on_file(done, len(files)),
            )  # fmt: skip
        audits.Settings(
            name=name, started=now.isoformat(timespec="seconds"), baseline=VARIANT, compare=Compare(), profile=profile
        ).write(folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            what, do = f"the record cannot be written: {error}", "make room, or give another folder with --out"
            raise InputError(what, where=str(out), do=do) from error
        raise
    return folder


def _import_timeline(
    timelines: list[Path], others: list[Path], run: Path, name: str, now: datetime, meter: MeterUsed, *, strict: bool
) -> None:
    """Write the record of a timeline of operations; `others` are named as left out."""
    path = timelines[0]
    if len(timelines) > 1:
        what = f"is the timeline of one job, and {timelines[1].name} that of another"
        raise RecordError(what, where=str(path), do="give one of them")
    operations, dropped = read_timeline(path)
    if strict and dropped:
        what = f"{dropped} operation(s) with negative durations"
        raise RecordError(what, where=str(path), do="read it without --strict")
    write_workers(
        operations, run, name=name, started=now.isoformat(timespec="seconds"), meter=meter, dropped=dropped,
        missing=[f"{other}: left out: {path.name} is the timeline of all workers of one job" for other in others],
    )  # fmt: skip


def _new_folder(wanted: Path) -> Path:
    """`wanted`, or the first free name after it, made.

    Raises:
        InputError: it cannot be made.
    """
    n = 1
    folder = wanted
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            n += 1
            folder = wanted.with_name(f"{wanted.name}-{n}")
        except OSError as error:
            do = "give another folder with --out"
            raise InputError(f"cannot be made: {error.strerror}", where=str(folder), do=do) from error


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
    why = f"a trace holds no power, and there is no profile of {what} (--profile models it as another device)"
    return MeterUsed("null", "unmeasured", f"unmeasured: {why}")
