"""Traces of all ranks of a job, written as the record of one run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.importers.calls import of_rank
from magneton_dist.importers.kineto import RankTrace, read_trace
from magneton_dist.importers.rank_files import MOST_RANKS, host_of, rank_of
from magneton_dist.records.host_times import HOST_TIMES, write_host_times
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.schema import FAULTS, TABLES
from magneton_dist.records.store import rank_folder, write_manifest, write_rank
from magneton_dist.timeline.clocks import UNKNOWN_ERROR_NS

VARIANT = "trace"
# Below this many bytes of files (gzip) starting processes takes longer than reading. Above it even a single file is
# read in a process of its own, with which goes the memory that it took.
WORTH_PROCESSES = 16 << 20
# Clocks of hosts may be off, but traces of one run are not this far apart.
APART_NS = 600_000_000_000

MeterOf = Callable[[str | None], MeterUsed]


@dataclass(frozen=True)
class Imported:
    """One file that became tables, or why not (`refused`). Its calls are not numbered yet."""

    path: Path
    trace: RankTrace | None = None
    refused: str | None = None


def import_traces(
    files: Sequence[Path],
    run: Path,
    *,
    name: str,
    started: str,
    meter_of: MeterOf,
    pattern: re.Pattern[str] | None = None,
    strict: bool = False,
    on_file: Callable[[int], None] = lambda done: None,
) -> Manifest:
    """Write the record of one run from one trace per rank.

    A file that cannot be read, has no rank, or a rank that another file has, is left out and named in the
    manifest's `missing`; the other ranks are kept.

    Args:
        files: of the ranks, in any order.
        run: folder of the run, not there yet.
        name, started: of the audit.
        meter_of: the meter for a type of device (None: not known).
        pattern: see `rank_files.rank_of`.
        strict: see `kineto.read_trace`.
        on_file: told how many files have been read.

    Raises:
        RecordError: no file is a trace.
    """
    staging = run / "staging"
    try:
        read = _read_all(files, staging, strict, on_file)
        traces, missing = _by_rank(read, pattern)
        if not traces:
            more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise RecordError(f"no trace could be read: {missing[0]}{more}")
        for rank, (number, _) in traces.items():
            rank_folder(run, rank).parent.mkdir(parents=True, exist_ok=True)
            rank_folder(staging / str(number), 0).rename(rank_folder(run, rank))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    ranks = {rank: trace for rank, (_, trace) in traces.items()}
    said = max((t.world_size or 0 for t in ranks.values()), default=0)
    world = max(said, max(ranks) + 1)
    _write_calls(run, _aligned(ranks), world)
    hosts = {rank: host_of(trace.path, rank, trace.device, trace.host) for rank, trace in ranks.items()}
    first = hosts[min(hosts)]
    manifest = Manifest(
        audit=name, variant=VARIANT, repeat=0, started=started, world_size=world, command=[], exit_code=0,
        ranks=[
            RankRun(
                rank, int(trace.device.partition(":")[2] or 0), hosts[rank], device=trace.device,
                meter=meter_of(trace.device_name if trace.device != "cpu" else "cpu"),
            )
            for rank, trace in sorted(ranks.items())
        ],
        # traces carry wall clocks; only those of one host are known to agree
        clocks={h: Clock() if h == first else Clock(0, UNKNOWN_ERROR_NS) for h in sorted(set(hosts.values()))},
        versions=next(iter(ranks.values())).versions,
        missing=missing,
    )  # fmt: skip
    write_manifest(run, manifest)
    return manifest


def _read_all(
    files: Sequence[Path], staging: Path, strict: bool, on_file: Callable[[int], None]
) -> list[Imported]:
    jobs = [(path, staging / str(n), strict) for n, path in enumerate(files)]
    size = sum(path.stat().st_size for path in files if path.is_file())
    workers = min(len(files), os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count() or 1)
    read: list[Imported] = []
    if size < WORTH_PROCESSES:
        for job in jobs:
            read.append(_read(job))
            on_file(len(read))
        return read
    # not forked: polars' threads do not survive that
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            with _without_main():
                reading = pool.map(_read, jobs)  # starts all processes
            for imported in reading:
                read.append(imported)
                on_file(len(read))
        except BrokenProcessPool as error:
            where = str(files[len(read)])
            do = "give fewer files at once"
            what = "a process that read traces was killed, perhaps for memory"
            raise RecordError(what, where=where, do=do) from error
    return read


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes spawned within do not import the caller's script, which need not be written for that."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _read(job: tuple[Path, Path, bool]) -> Imported:
    """Read one file and write what is large of it below its staging folder."""
    path, staging, strict = job
    try:
        trace = read_trace(path, strict=strict)
    except RecordError as error:
        return Imported(path, refused=str(error))
    empty = {name: table.empty() for name, table in TABLES.items()}
    write_rank(staging, 0, empty | trace.tables)
    write_host_times(rank_folder(staging, 0), trace.host_times)
    kept = {name: trace.tables[name] for name in ("steps", "faults")}
    return Imported(path, replace(trace, tables=kept, host_times=HOST_TIMES.empty()))


def _by_rank(
    read: Sequence[Imported], pattern: re.Pattern[str] | None
) -> tuple[dict[int, tuple[int, RankTrace]], list[str]]:
    """The traces by rank, each with the number of its file, and what was left out."""
    ranked: list[tuple[int, int, RankTrace]] = []
    missing = []
    for number, imported in enumerate(read):
        trace = imported.trace
        if trace is None:
            missing.append(imported.refused or "")
            continue
        rank = rank_of(trace.path, trace.rank, pattern)
        if rank is None and len(read) == 1:
            rank = 0
            trace = _noted(trace, "has no rank: taken for rank 0")
        if trace.world_size is not None and not 0 < trace.world_size <= MOST_RANKS:
            trace = _noted(trace, f"says it is of {trace.world_size} ranks: that number is not used")
            trace = replace(trace, world_size=None)
        if rank is None and pattern is not None:
            missing.append(f"{trace.path}: has no number where --rank-regex {pattern.pattern} wants the rank")
        elif rank is None:
            missing.append(f"{trace.path}: has no rank, in it or in its name (give --rank-regex)")
        elif rank >= MOST_RANKS:
            missing.append(f"{trace.path}: {rank} is no number of a rank (give --rank-regex)")
        else:
            ranked.append((rank, number, trace))
    # of two files of one rank the one whose name agrees
    ranked.sort(key=lambda item: rank_of(item[2].path, None, None) != item[0])
    together = _one_run([trace for _, _, trace in ranked])
    of_run = set(map(id, together))  # tables have no equality to look for
    traces: dict[int, tuple[int, RankTrace]] = {}
    for rank, number, trace in ranked:
        if id(trace) not in of_run:
            first = together[0]
            apart = max(trace.span_ns[0] - first.span_ns[1], first.span_ns[0] - trace.span_ns[1])
            how_far = timedelta(seconds=round(apart / 1e9))
            missing.append(f"{trace.path}: was recorded {how_far} (h:min:s) apart from {first.path}: not the same run")
        elif rank in traces:
            do = "give the files of one cycle of the profiler at a time"
            missing.append(f"{trace.path}: is of rank {rank}, as {traces[rank][1].path} is, which is used ({do})")
        else:
            traces[rank] = (number, trace)
    return dict(sorted(traces.items())), missing


def _one_run(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Those that can be of one run, by start: the most that are not `APART_NS` apart, of equally many the latest."""
    runs: list[list[RankTrace]] = []
    until = 0
    for trace in sorted(traces, key=lambda trace: trace.span_ns):
        start, end = trace.span_ns
        if not runs or start - until > APART_NS:
            runs.append([])
            until = end
        runs[-1].append(trace)
        until = max(until, end)
    return max(reversed(runs), key=len, default=[])


def _noted(trace: RankTrace, *notes: str) -> RankTrace:
    """`trace` with more notes on what was wrong with it."""
    faults = pl.DataFrame({"where": ["trace"] * len(notes), "message": notes}, FAULTS.schema)
    return replace(trace, tables={**trace.tables, "faults": pl.concat([trace.tables["faults"], faults])})


def _aligned(ranks: dict[int, RankTrace]) -> dict[int, RankTrace]:
    """Steps and calls of those steps that all ranks have, so that the n-th call of one is that of another.

    Where a trace has no numbers of steps, nothing says where the ranks begin: all is kept as it is.
    """
    if len(ranks) < 2 or not all(trace.numbered for trace in ranks.values()):
        return ranks
    common = set.intersection(*(set(trace.tables["steps"]["step"]) for trace in ranks.values()))
    return {rank: _cut(trace, common) for rank, trace in ranks.items()}


def _cut(trace: RankTrace, common: set[int]) -> RankTrace:
    kept = trace.calls.filter(pl.col("step").is_in(list(common)))
    steps = trace.tables["steps"]
    notes = []
    if common and len(common) < steps.height:
        notes.append(f"{steps.height - len(common)} step(s) that other ranks' traces lack are left out")
        steps = steps.filter(pl.col("step").is_in(list(common)))
    elif not common:
        notes.append("has no step in common with the other ranks' traces: its calls cannot be counted with theirs")
    if lost := trace.calls.height - kept.height:
        notes.append(f"{lost} collective(s) outside the common steps are not compared")
    return _noted(replace(trace, calls=kept, tables={**trace.tables, "steps": steps}), *notes)


def _write_calls(run: Path, ranks: dict[int, RankTrace], world: int) -> None:
    for rank, trace in ranks.items():
        write_rank(run, rank, {**trace.tables, "collectives": of_rank(trace.calls, rank, world)})
