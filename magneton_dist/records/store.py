"""The record on disk: ``<audit>/<variant>/<repeat>/manifest.json`` and ``ranks/NNNNN/<table>.parquet``.

Everything is written to a temporary name and renamed into place, so a reader sees a whole file or none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
import networkx as nx
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.audit import AUDIT_VERSION, Audit
from magneton_dist.records.beside import write_whole
from magneton_dist.records.graph import operator_graph
from magneton_dist.records.manifest import Manifest
from magneton_dist.records.schema import SCHEMA_VERSION, TABLES

MANIFEST = "manifest.json"
AUDIT = "audit.json"
VERSION_KEY = "magneton_dist.schema_version"

T = TypeVar("T", bound=msgspec.Struct)


class RankRecord:
    """One rank of one run; tables are read when first asked for.

    A table that is not there reads as one without rows and is named in `missing`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = int(folder.name)
        self._tables: dict[str, pl.DataFrame] = {}

    def __repr__(self) -> str:
        return f"RankRecord({str(self.folder)!r})"

    @property
    def missing(self) -> list[str]:
        """Names of the tables that this rank did not leave."""
        return [name for name in TABLES if not self._path(name).exists()]

    def table(self, name: str) -> pl.DataFrame:
        """The table `name` of `records.schema.TABLES`, its columns exactly as declared there.

        Raises:
            RecordError: the file is damaged, or was written by a newer version.
        """
        if name not in self._tables:
            self._tables[name] = self._read(name)
        return self._tables[name]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    def _read(self, name: str) -> pl.DataFrame:
        table, path = TABLES[name], self._path(name)
        if not path.exists():
            return table.empty()
        try:
            version = pl.read_parquet_metadata(path).get(VERSION_KEY, "0")
            _check_version(int(version), SCHEMA_VERSION, str(path))
            frame = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError, ValueError) as error:
            raise RecordError(
                f"cannot be read: {error}", where=str(path), do="copy the run again, or delete this table"
            ) from error
        return table.validate(frame, str(path))

    @property
    def steps(self) -> pl.DataFrame:
        """One step a row."""
        return self.table("steps")

    @property
    def stamps(self) -> pl.DataFrame:
        """Clock readings of the main thread."""
        return self.table("stamps")

    @property
    def collectives(self) -> pl.DataFrame:
        """One collective or point-to-point call a row."""
        return self.table("collectives")

    @property
    def collective_sums(self) -> pl.DataFrame:
        """Exact sums of the collectives that the spool's cap left out."""
        return self.table("collective_sums")

    @property
    def ops(self) -> pl.DataFrame:
        """Operators of the traced steps."""
        return self.table("ops")

    @property
    def values(self) -> pl.DataFrame:
        """Tensor versions that the operators read and wrote."""
        return self.table("values")

    @property
    def fingerprints(self) -> pl.DataFrame:
        """What the values hold, as numbers that views and rounding leave alone."""
        return self.table("fingerprints")

    @property
    def activities(self) -> pl.DataFrame:
        """Intervals on the device."""
        return self.table("activities")

    @property
    def power(self) -> pl.DataFrame:
        """Power readings."""
        return self.table("power")

    @property
    def counters(self) -> pl.DataFrame:
        """Energy counter readings."""
        return self.table("counters")

    @property
    def stacks(self) -> pl.DataFrame:
        """Call stacks."""
        return self.table("stacks")

    @property
    def knobs(self) -> pl.DataFrame:
        """Settings of the process."""
        return self.table("knobs")

    @property
    def parameters(self) -> pl.DataFrame:
        """Digests of the final parameters."""
        return self.table("parameters")

    @property
    def marks(self) -> pl.DataFrame:
        """Moments in the life of the rank."""
        return self.table("marks")

    @property
    def faults(self) -> pl.DataFrame:
        """What the tracer could not do or left out."""
        return self.table("faults")

    def graph(self) -> nx.MultiDiGraph:
        """The operator graph of the traced steps; see `records.graph.operator_graph`."""
        return operator_graph(self.ops, self.values)


class RunRecord:
    """One run: a manifest and its ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"RunRecord({str(self.folder)!r})"

    @cached_property
    def manifest(self) -> Manifest:
        """What was run, where, with which clocks and meters.

        Raises:
            RecordError: missing, damaged or of a newer schema.
        """
        return _read_json(self.folder / MANIFEST, Manifest, SCHEMA_VERSION)

    @cached_property
    def ranks(self) -> dict[int, RankRecord]:
        """The ranks that left tables, by rank."""
        found = sorted((int(p.name), p) for p in (self.folder / "ranks").glob("*") if p.name.isdecimal())
        return {rank: RankRecord(folder) for rank, folder in found if folder.is_dir()}

    @property
    def missing(self) -> list[int]:
        """Ranks of the world that left no tables."""
        return [rank for rank in range(self.manifest.world_size) if rank not in self.ranks]


class AuditRecord:
    """One audit: its result and every run of every variant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"AuditRecord({str(self.folder)!r})"

    @cached_property
    def audit(self) -> Audit | None:
        """The result, or None when the audit ended before one was written.

        Raises:
            RecordError: damaged or of a newer schema.
        """
        path = self.folder / AUDIT
        return _read_json(path, Audit, AUDIT_VERSION) if path.exists() else None

    @cached_property
    def runs(self) -> dict[str, dict[int, RunRecord]]:
        """The counted runs, by variant and repeat; discarded warm-up runs have no number and are not here."""
        runs: dict[str, dict[int, RunRecord]] = {}
        for folder in sorted(self.folder.glob("*/*")):
            if folder.name.isdecimal() and (folder / MANIFEST).exists():
                runs.setdefault(folder.parent.name, {})[int(folder.name)] = RunRecord(folder)
        return {variant: dict(sorted(repeats.items())) for variant, repeats in runs.items()}


def load(path: str | os.PathLike[str]) -> AuditRecord | RunRecord:
    """Open the folder of one audit, or of one run of it.

    Raises:
        RecordError: it is neither, or cannot be read.
    """
    folder = Path(path)
    try:
        if (folder / MANIFEST).is_file():
            return RunRecord(folder)
        audit = AuditRecord(folder)
        if (folder / AUDIT).is_file() or (folder.is_dir() and audit.runs):
            return audit
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(folder)) from error
    raise RecordError(
        "holds no record",
        where=str(folder),
        do=f"give the folder of an audit, or of one run with its {MANIFEST}",
    )


def is_record(folder: Path) -> bool:
    """Whether `load` can open it."""
    try:
        load(folder)
    except RecordError:
        return False
    return True


def rank_folder(run: Path, rank: int) -> Path:
    """Where the tables of `rank` lie in the folder of a run."""
    return run / "ranks" / f"{rank:05d}"


def write_rank(run: Path, rank: int, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write tables of one rank, each atomically.

    Raises:
        RecordError: a table is unknown or its columns are not as declared; nothing is written then.
    """
    folder = rank_folder(run, rank)
    for name, frame in tables.items():
        if name not in TABLES:
            do = f"use one of {', '.join(TABLES)}"
            raise RecordError(f"no table is called {name!r}", where=str(folder), do=do)
        TABLES[name].validate(frame, str(folder / name))
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in tables.items():
        write_whole(folder / f"{name}.parquet", frame, {VERSION_KEY: str(SCHEMA_VERSION)})


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` of the run in folder `run`, atomically."""
    _write_json(run / MANIFEST, manifest)


def write_audit(folder: Path, audit: Audit) -> None:
    """Write ``audit.json`` into the audit's folder, atomically."""
    _write_json(folder / AUDIT, audit)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write_json(path: Path, content: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    draft.replace(path)


class _Versioned(msgspec.Struct):
    schema_version: int


def _read_json(path: Path, kind: type[T], known: int) -> T:
    try:
        data = path.read_bytes()
        _check_version(msgspec.json.decode(data, type=_Versioned).schema_version, known, str(path))
        return msgspec.json.decode(data, type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), do="copy the record again") from error


def _check_version(found: int, known: int, where: str) -> None:
    if found > known:
        raise RecordError(
            f"is of schema version {found}, this magneton-dist reads up to {known}",
            where=where,
            do="update magneton-dist",
        )
