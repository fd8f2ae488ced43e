"""How busy the parts of a rank's device were, by its own performance monitors: one file per rank.

Only some GPUs tell it (NVML's GPM: Hopper and newer); `manifest.MeterUsed.monitors` says which, or why none did.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from magneton_dist.records.beside import read_beside, write_beside
from magneton_dist.records.schema import F64, I64, STR, Column, Table

FILE = "monitors.parquet"

MONITORS = Table("monitors", "means of a device's performance monitors between two looks at them", {
    "device": Column(STR, "", "device UUID"),
    "start_ns": Column(I64, "ns", "the look before; that of the first row is when the meter was opened"),
    "end_ns": Column(I64, "ns", "this look"),
    "sm": Column(F64, "", "share of SMs with work, 0 to 1; like the others null where the device does not tell"),
    "tensor": Column(F64, "", "share of the tensor cores' peak, 0 to 1"),
    "dram": Column(F64, "", "share of the DRAM's bandwidth, 0 to 1"),
    "nvlink_bytes_s": Column(F64, "B/s", "received and sent over NVLink, together"),
})  # fmt: skip


def read_monitors(rank: Path) -> pl.DataFrame:
    """Table `MONITORS` of the rank in this folder; without rows where nothing tells it.

    Raises:
        RecordError: it is damaged.
    """
    return read_beside(rank / FILE, MONITORS, "delete it: waits are then not corroborated")


def write_monitors(rank: Path, rows: pl.DataFrame) -> None:
    """Write the table into the folder of a rank, which is there."""
    write_beside(rank / FILE, MONITORS, rows)
