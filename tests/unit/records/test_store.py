import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import magneton_dist
from magneton_dist.errors import RecordError
from magneton_dist.records.audit import Audit, Machine
from magneton_dist.records.store import (
    AuditRecord,
    RunRecord,
    load,
    rank_folder,
    write_audit,
    write_manifest,
    write_rank,
)

RESULT = Audit(
    name="test",
    started="2026-01-01T00:00:00Z",
    machine=Machine(hosts=["a"], devices=["cpu"], cpu="x", cores=2, versions={}),
    energy_kind="unmeasured",
    energy_source="null",
    variants={},
    comparison=None,
    findings=[],
    missing=[],
)


def test_what_was_written_is_read_back(run: Path, make_manifest, tables: dict[str, pl.DataFrame]):
    record = load(run)
    assert isinstance(record, RunRecord)
    assert record.manifest == make_manifest()
    rank = record.ranks[0]
    assert rank.missing == []
    for name, frame in tables.items():
        assert rank.table(name).equals(frame), name
        assert getattr(rank, name).equals(frame)


def test_nothing_but_the_tables_is_left_behind(run: Path, tables: dict[str, pl.DataFrame]):
    assert {p.name for p in rank_folder(run, 0).iterdir()} == {f"{name}.parquet" for name in tables}
    assert {p.name for p in run.iterdir()} == {"manifest.json", "ranks"}


def test_a_write_that_fails_leaves_the_old_table(run: Path, monkeypatch: pytest.MonkeyPatch):
    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_rank(run, 0, {"steps": load(run).ranks[0].steps.clear()})
    assert load(run).ranks[0].steps.height == 1


def test_a_missing_table_reads_empty_and_is_named(run: Path):
    (rank_folder(run, 0) / "power.parquet").unlink()
    rank = load(run).ranks[0]
    assert rank.missing == ["power"]
    assert rank.power.columns == ["device", "t_ns", "watts", "sensor", "window_ns"]
    assert rank.power.height == 0


def test_a_missing_rank_is_named(run: Path, make_manifest):
    write_manifest(run, make_manifest(world_size=3))
    assert load(run).missing == [1, 2]


def test_columns_that_differ_are_refused_on_writing_and_nothing_is_written(tmp_path: Path, tables):
    with pytest.raises(RecordError, match=r"'steps'.*units"):
        write_rank(tmp_path, 0, {"ops": tables["ops"], "steps": tables["steps"].drop("units")})
    assert not (tmp_path / "ranks").exists()
    with pytest.raises(RecordError, match="no table is called 'nonsense'"):
        write_rank(tmp_path, 0, {"nonsense": tables["ops"]})


def test_a_newer_manifest_is_a_clear_error_even_if_its_shape_changed(run: Path):
    (run / "manifest.json").write_text(json.dumps({"schema_version": 99, "altogether": "new"}))
    with pytest.raises(RecordError, match=r"schema version 99.*update magneton-dist"):
        _ = load(run).manifest


def test_a_newer_table_is_a_clear_error(run: Path, tables):
    tables["steps"].with_columns(extra=pl.lit(1)).write_parquet(
        rank_folder(run, 0) / "steps.parquet", metadata={"magneton_dist.schema_version": "2"}
    )
    with pytest.raises(RecordError, match=r"steps\.parquet: is of schema version 2"):
        _ = load(run).ranks[0].steps


def test_a_column_that_came_later_reads_as_null(run: Path, tables):
    older = tables["values"].drop("kept")
    older.write_parquet(rank_folder(run, 0) / "values.parquet", metadata={"magneton_dist.schema_version": "1"})
    read = load(run).ranks[0].table("values")
    assert read.equals(tables["values"].with_columns(kept=pl.lit(None, pl.Boolean)))


def test_a_damaged_file_is_a_clear_error(run: Path):
    path = rank_folder(run, 0) / "steps.parquet"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RecordError, match=r"steps\.parquet: cannot be read"):
        _ = load(run).ranks[0].steps
    (run / "manifest.json").write_text('{"schema_version": 1, ')
    with pytest.raises(RecordError, match=r"manifest\.json: cannot be read"):
        _ = load(run).manifest


def test_an_audit_opens_with_its_runs_and_leaves_discarded_ones_out(run: Path, make_manifest, tables):
    audit = run.parent.parent
    for variant, repeat in (("join", "1"), ("join", "10"), ("early-exit", "0"), ("join", "warm-up-0")):
        write_rank(audit / variant / repeat, 0, tables)
        write_manifest(audit / variant / repeat, make_manifest())
    record = load(audit)
    assert isinstance(record, AuditRecord)
    assert record.audit is None
    assert {variant: list(repeats) for variant, repeats in record.runs.items()} == {
        "early-exit": [0],
        "join": [0, 1, 10],
    }
    write_audit(audit, RESULT)
    assert load(audit).audit == RESULT


def test_a_folder_without_a_record_is_refused(tmp_path: Path):
    with pytest.raises(RecordError, match="holds no record"):
        load(tmp_path)
    with pytest.raises(RecordError, match="holds no record"):
        load(tmp_path / "nowhere")


def test_load_is_the_package_s_and_importing_the_package_costs_no_polars(run: Path):
    assert isinstance(magneton_dist.load(run), RunRecord)
    code = "import magneton_dist, sys; sys.exit('polars' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
