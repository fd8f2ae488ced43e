"""What a rank's host did while its device idled, and how long it stood in synchronisation: one file per rank.

Only profiler traces tell it: they hold the launch of every kernel, the loader's annotations and the runtime's calls.
Of a job that was recorded, the steps whose kernels were captured tell how long its main thread waited for the device;
how long it fetched data while the device was idle is not in the file: marks of the record tell it.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from magneton_dist.records.beside import read_beside, write_beside
from magneton_dist.records.schema import I64, STR, Column, Table

FILE = "host_times.parquet"
IDLE = ("loader", "host", "launch", "unknown")  # kinds that say why the device idled

HOST_TIMES = Table("host_times", "time of one kind and cause within one step", {
    "step": Column(I64, "", "step; null outside of steps"),
    "kind": Column(
        STR, "",
        "of the device's idle time: loader (the host fetched data), host (it worked and had launched nothing), launch "
        "(launched, not yet begun), unknown; sync: the host stood in a call that waits for the device; spin: CPU time "
        "that its main thread certainly burnt in such calls, of jobs that were recorded with their threads' clocks",
    ),
    "what": Column(
        STR, "",
        "operator that ended the idling, or in which the host waited; of the loader its own annotation; empty where "
        "unknown",
    ),
    "stack_id": Column(I64, "", "its stack, null when unknown"),
    "count": Column(I64, "", "stretches of time, or calls"),
    "duration_ns": Column(I64, "ns", "together"),
})  # fmt: skip


def read_host_times(rank: Path) -> pl.DataFrame:
    """Table `HOST_TIMES` of the rank in this folder; without rows where nothing tells it.

    Raises:
        RecordError: it is damaged.
    """
    return read_beside(rank / FILE, HOST_TIMES, "import the trace again")


def write_host_times(rank: Path, rows: pl.DataFrame) -> None:
    """Write the table into the folder of a rank, which is there."""
    write_beside(rank / FILE, HOST_TIMES, rows)
