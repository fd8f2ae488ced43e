"""One table in a file of its own, beside a record: not every record has it."""

from __future__ import annotations

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
    """Write the file at once or not at all; its folder is there."""
    draft = path.with_name(f".{path.name}.tmp")
    table.validate(rows, str(path)).write_parquet(draft)
    draft.replace(path)
