from __future__ import annotations

import resource
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.records.beside import read_beside, write_beside
from magneton_dist.records.schema import I64, Column, Table

TABLE = Table("lengths", "a length", {"n": Column(I64, "", "how many")})


def test_rows_come_back_and_no_draft_is_left(tmp_path: Path) -> None:
    write_beside(tmp_path / "lengths.parquet", TABLE, pl.DataFrame({"n": [3, 5]}))
    assert read_beside(tmp_path / "lengths.parquet", TABLE, "")["n"].to_list() == [3, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.parquet"]


def test_no_file_is_no_rows_and_a_damaged_one_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "lengths.parquet"
    assert read_beside(path, TABLE, "").height == 0
    path.write_bytes(b"PAR1")
    with pytest.raises(RecordError, match="import it again"):
        read_beside(path, TABLE, "import it again")


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "lengths.parquet"
    write_beside(path, TABLE, pl.DataFrame({"n": [3]}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(OSError, match="os error"):
            write_beside(path, TABLE, pl.DataFrame({"n": range(100_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_beside(path, TABLE, "")["n"].to_list() == [3]
    assert [left.name for left in tmp_path.iterdir()] == ["lengths.parquet"]
