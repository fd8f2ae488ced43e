"""Operations of all workers of a pipeline-parallel job, beside the run that they are the timeline of."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from magneton_dist.records.beside import read_beside, write_beside
from magneton_dist.records.schema import BOOL, I64, STR, Column, Table

FILE = "operations.parquet"

OPERATIONS = Table("operations", "one operation of one worker of a pipeline-parallel job", {
    "step": Column(I64, "", "step"),
    "dp": Column(I64, "", "data-parallel rank of the worker"),
    "stage": Column(I64, "", "pipeline stage of the worker"),
    "op": Column(STR, "", "forward-compute, forward-send, grads-reduce-scatter, ..."),
    "start_ns": Column(I64, "ns", "start"),
    "end_ns": Column(I64, "ns", "end"),
    "call": Column(STR, "", "equal for the members of one communication within a step; null: runs alone"),
    "message": Column(BOOL, "", "from one stage to the next, or back"),
})


def read_operations(run: Path) -> pl.DataFrame:
    """Table `OPERATIONS` of the run in folder `run`; without rows where it is no timeline's.

    Raises:
        RecordError: it is damaged.
    """
    return read_beside(run / FILE, OPERATIONS, "import the timeline again")


def write_operations(run: Path, operations: pl.DataFrame) -> None:
    """Write the table into the folder of a run, which is there."""
    write_beside(run / FILE, OPERATIONS, operations)
