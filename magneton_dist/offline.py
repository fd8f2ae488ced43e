"""`magneton_dist.audit` and `magneton_dist.compare`: what is on disk or in memory, without running anything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from magneton_dist import audits
from magneton_dist.comparisons import By, compare_records, repeats_in
from magneton_dist.errors import InputError
from magneton_dist.frontends import compare as graphs
from magneton_dist.frontends.graph_record import GraphRecord
from magneton_dist.matching.records import Algorithm
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import Audit
from magneton_dist.records.store import AuditRecord, RankRecord, RunRecord, is_record, load
from magneton_dist.traces import audit_traces

Folder = str | os.PathLike[str]
Comparable = Folder | AuditRecord | RunRecord | RankRecord | GraphRecord


def audit(
    what: Folder | AuditRecord | Sequence[Folder], *, profile: str | None = None, out: Folder | None = None,
    rank_regex: str | None = None, strict: bool = False,
) -> Audit:
    """Analyse the record of an audit again, or the profiler traces of a job.

    Args:
        what: the record's folder, or what `load` gave for it; or traces: a folder, a file, a glob, or several.
        profile: name or file of a profile that replaces the watts it was modelled with.
        out: of traces: the folder to make their record in; default: it is not kept.
        rank_regex: of traces: its first group is the rank in a file's path.
        strict: of traces: refuse a file for the first event that cannot be read.

    Raises:
        RecordError: there is no such record, and no trace can be read.
    """
    watts = None if profile is None else load_profile(profile)
    if isinstance(what, AuditRecord):
        return audits.audit(what.folder, watts).audit
    given = [Path(what)] if isinstance(what, (str, os.PathLike)) else [Path(one) for one in what]
    if len(given) == 1 and is_record(given[0]):
        return audits.audit(given[0], watts).audit
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if out is None else Path(out)
        return audit_traces(given, folder, profile=watts, rank_regex=rank_regex, strict=strict).audit


def compare(
    a: Comparable, b: Comparable, *, by: By | None = None, profile: str | None = None, rank: int | None = None,
    eps: float | None = None, algorithm: Algorithm | None = None,
) -> Audit | graphs.GraphComparison:
    """Compare two records.

    Audited runs are compared with all their ranks, repeats and joules, and give an `Audit` whose baseline is `a`.
    Recorded callables (`magneton_dist.record`), single ranks, and runs that no audit made are compared as graphs.

    Args:
        a, b: a folder (of a run, a variant, or an audit of one variant), or what `load` or `record` gave.
        by: of runs: what decides; default: as in a's audit.
        profile: of runs: name or file of a profile that replaces the watts they were modelled with.
        rank: of graphs: which rank of a run, by default 0.
        eps: of graphs: relative tolerance of values; by default 1e-3, or 1e-2 where 16 or 8 bits take part.
        algorithm: of graphs: "frontier", the default, or "dominators" for Algorithm 1 of the paper, which is coarser.

    Raises:
        InputError: a record is not there, or holds nothing to compare, or an argument is of the other kind of record.
    """
    folders = [_audited(record) for record in (a, b)]
    one, other = folders
    if one is None or other is None:
        _refuse("recorded callables and single ranks", "give audited runs", by=by, profile=profile)
        a, b = (record.folder if isinstance(record, AuditRecord) else record for record in (a, b))
        return graphs.compare(a, b, rank=rank or 0, eps=eps, algorithm=algorithm or "frontier")
    one_rank = "give ranks of them, as magneton_dist.load(RUN).ranks[0]"
    _refuse("audited runs with all their ranks", one_rank, rank=rank, eps=eps, algorithm=algorithm)
    return compare_records(one, other, by=by, profile=None if profile is None else load_profile(profile)).audit


def _refuse(what: str, do: str, **given: object) -> None:
    """Arguments that would change nothing."""
    for name, argument in given.items():
        if argument is not None:
            raise InputError(f"{name} does not apply to {what}", where="compare", do=f"leave it out, or {do}")


def _audited(record: Comparable) -> Path | None:
    """The folder of what an audit has run; None for anything else."""
    if isinstance(record, (AuditRecord, RunRecord)):
        folder = record.folder
    elif not isinstance(record, (str, os.PathLike)):
        return None
    else:
        folder = Path(record)
        if repeats_in(folder):
            return folder
        record = load(folder)
    if isinstance(record, RunRecord) and all(rank.meter is None for rank in record.manifest.ranks):
        return None
    return folder
