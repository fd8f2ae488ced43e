"""What recording a callable leaves: the tables of one rank."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import networkx as nx
import polars as pl

from magneton_dist.errors import InputError
from magneton_dist.records.assembly import assemble
from magneton_dist.records.graph import operator_graph
from magneton_dist.records.manifest import Manifest, RankRun
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import write_manifest, write_rank
from magneton_dist.tracer.spool import Spool


@dataclass(eq=False)
class GraphRecord:
    """The operator graph of one call of a callable.

    `tables` has the tables of `records.schema`, as a traced step of one rank leaves them. `versions` are those
    of Python and of the framework's packages.
    """

    name: str
    framework: str
    versions: dict[str, str]
    tables: dict[str, pl.DataFrame] = field(repr=False)

    def __repr__(self) -> str:
        return f"GraphRecord({self.name!r}, {self.framework}, {len(self.ops)} operators)"

    def table(self, name: str) -> pl.DataFrame:
        """The table `name` of `records.schema.TABLES`."""
        return self.tables[name] if name in self.tables else TABLES[name].empty()

    @property
    def ops(self) -> pl.DataFrame:
        """The operators, in order of execution."""
        return self.table("ops")

    @property
    def values(self) -> pl.DataFrame:
        """The values that they read and made."""
        return self.table("values")

    @property
    def fingerprints(self) -> pl.DataFrame:
        """The fingerprints of the values."""
        return self.table("fingerprints")

    @property
    def stacks(self) -> pl.DataFrame:
        """Where in the source the operators come from."""
        return self.table("stacks")

    @property
    def faults(self) -> pl.DataFrame:
        """What could not be recorded, and what to keep in mind."""
        return self.table("faults")

    def graph(self) -> nx.MultiDiGraph:
        """As networkx: see `records.graph.operator_graph`."""
        return operator_graph(self.ops, self.values)

    def save(self, folder: Path) -> None:
        """Write a run of one rank that `magneton_dist.load` opens; files already there are replaced.

        Raises:
            InputError: it cannot be written there.
        """
        manifest = Manifest(
            audit=self.name,
            variant=self.framework,
            repeat=0,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            world_size=1,
            command=[],
            exit_code=0,
            ranks=[RankRun(rank=0, local_rank=0, node="", distributed=False)],
            clocks={},
            versions=self.versions,
        )
        try:
            write_rank(folder, 0, {name: self.table(name) for name in TABLES})
            write_manifest(folder, manifest)
        except OSError as error:
            do = "give a folder that may be written to"
            raise InputError(f"cannot be written: {error.strerror}", where=str(folder), do=do) from error


@contextmanager
def recording(name: str, framework: str, versions: dict[str, str]) -> Iterator[tuple[Spool, GraphRecord]]:
    """A spool to write rows into, and the record that holds them once the block has ended.

    Args:
        name: of the record.
        framework: of the callable.
        versions: of the framework's packages.
    """
    record = GraphRecord(name, framework, {"python": platform.python_version(), **versions}, {})
    with tempfile.TemporaryDirectory(prefix="magneton-") as folder:
        spool = Spool(folder, float("inf"))
        start_ns = time.monotonic_ns()
        try:
            yield spool, record
            spool.put("step", 0, start_ns, time.monotonic_ns(), "traced", None, None)
        finally:
            spool.close()
        record.tables = assemble(Path(folder))
