"""One table in a file of its own, beside a record: not every record has it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.schema import Table


def read_beside(path: Path, table: Table, do: str) -> pl.DataFrame:
    """`table` as the file holds it; without rows where there is none.

    Args:
        path: of the file.
        table: its schema.
        do: what to do when it is damaged.

    Raises:
        RecordError: it is damaged.
    """
    if not path.exists():
        return table.empty()
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), do=do) from error
    return table.validate(frame, str(path))


def write_beside(path: Path, table: Table, rows: pl.DataFrame) -> None:
    """Write the file at once or not at all; its folder is there. `OSError` when it cannot be written."""
    write_whole(path, table.validate(rows, str(path)))


def write_whole(path: Path, rows: pl.DataFrame, metadata: dict[str, str] | None = None) -> None:
    """Write a Parquet file at once or not at all.

    Args:
        path: of the file; its folder is there.
        rows: what it holds.
        metadata: of the file.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        rows.write_parquet(draft, metadata=metadata)
        draft.replace(path)
    except pl.exceptions.ComputeError as error:  # so polars calls a full disk
        raise OSError(errno.EIO, str(error)) from error
    finally:
        draft.unlink(missing_ok=True)
