from pathlib import Path

import polars as pl
import pytest

from magneton_dist.records.host_times import HOST_TIMES, write_host_times
from magneton_dist.records.monitors import MONITORS, write_monitors
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import load, rank_folder, write_manifest, write_rank
from magneton_dist.records.validation import REQUIRED, RULES, UNIQUE, WORDS, validate


def test_a_sound_record_has_no_problems(run: Path):
    assert validate(run) == []
    assert validate(load(run)) == []


def test_the_rules_name_columns_that_exist():
    tables = {**TABLES, HOST_TIMES.name: HOST_TIMES, MONITORS.name: MONITORS}
    assert REQUIRED.keys() == tables.keys()
    for name, columns in REQUIRED.items():
        assert set(columns) <= tables[name].columns.keys()
    for rule in RULES:
        tables[rule.table].empty().select(rule.wrong)
    assert all(column in tables[name].columns for name, column in [*UNIQUE.items(), *WORDS])


BROKEN = {
    "end before start": ("ops", {"end_ns": -1}, "5 row(s) end before they start"),
    "dangling input": ("ops", {"inputs": [77]}, "inputs names 1 value_id(s) that values lacks, first 77"),
    "dangling stack": ("ops", {"stack_id": 9}, "stack_id names 1 stack_id(s) that stacks lacks, first 9"),
    "unknown step": ("ops", {"step": 4}, "step names 1 step(s) that steps lacks, first 4"),
    "unknown phase": ("ops", {"phase": "sideways"}, "phase 'sideways' is none of forward, backward"),
    "no JSON": ("ops", {"arguments": "{"}, "arguments of op 0 are no JSON"),
    "no JSON array": ("ops", {"arguments": "{}"}, "arguments of op 0 are no JSON array"),
    "twice": ("values", {"value_id": 1}, "value_id is not unique in 6 row(s)"),
    "ranks of lists": ("values", {"stride": [1]}, "6 row(s) shape and stride differ in length"),
    "negative bytes": ("collectives", {"bytes": -4}, "1 row(s) bytes is negative, first row 0"),
    "not a rank": ("collectives", {"group_rank": 2}, "1 row(s) group_rank is not a rank of the group"),
    "null": ("collectives", {"issue_ns": None}, "issue_ns is null in 1 row(s)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_defect_is_named(run: Path, case: str):
    name, change, words = BROKEN[case]
    columns = {column: pl.lit(value) for column, value in change.items()}
    frame = load(run).ranks[0].table(name).with_columns(**columns).cast(TABLES[name].schema)
    write_rank(run, 0, {name: frame})
    assert any(problem.startswith(f"rank 0: {name}: {words}") for problem in validate(run)), validate(run)


def test_times_that_run_backwards_are_named(run: Path, make_table):
    stamps = make_table("stamps", *({"t_ns": t, "cpu_ns": 0, "delay_ns": 0} for t in (5, 9, 8)))
    readings = [("a", 9), ("b", 5), ("a", 8)]
    rows = ({"device": d, "t_ns": t, "watts": 1.0, "sensor": "x", "window_ns": 1} for d, t in readings)
    power = make_table("power", *rows)
    write_rank(run, 0, {"stamps": stamps, "power": power})
    assert validate(run) == [
        "rank 0: stamps: 1 row(s) t_ns goes backwards, first row 2",
        "rank 0: power: 1 row(s) t_ns goes backwards, first row 2",
    ]


def test_missing_things_are_named(run: Path, make_manifest):
    (rank_folder(run, 0) / "knobs.parquet").unlink()
    write_manifest(run, make_manifest(world_size=2))
    assert validate(run) == ["rank 1: left no tables", "rank 0: knobs: missing"]


def test_other_columns_and_damage_are_named_and_the_rest_is_still_checked(run: Path, make_table):
    folder = rank_folder(run, 0)
    pl.DataFrame({"step": [1]}).write_parquet(folder / "steps.parquet")
    (folder / "knobs.parquet").write_bytes(b"PAR1")
    write_rank(run, 0, {"stamps": make_table("stamps", {"t_ns": 1, "cpu_ns": 1})})
    problems = validate(run)
    assert len(problems) == 3
    assert any("'steps' has other columns" in p for p in problems)
    assert any("knobs.parquet: cannot be read" in p for p in problems)
    assert any("stamps: delay_ns is null" in p for p in problems)


def test_times_of_the_host_are_looked_at_too(run: Path):
    rows = [(0, "host", "aten::mm", None, 1, 5), (0, "asleep", "", 77, 1, -5)]
    write_host_times(rank_folder(run, 0), pl.DataFrame(rows, schema=HOST_TIMES.schema, orient="row"))
    assert validate(run) == [
        "rank 0: host_times: kind 'asleep' is none of loader, host, launch, unknown, sync, spin",
        "rank 0: host_times: 1 row(s) duration_ns is negative, first row 1",
        "rank 0: host_times: stack_id names 1 stack_id(s) that stacks lacks, first 77",
    ]
    (rank_folder(run, 0) / "host_times.parquet").write_bytes(b"PAR1")
    (problem,) = validate(run)
    assert "host_times.parquet: cannot be read" in problem


def test_a_record_without_a_manifest_says_so(run: Path):
    (run / "manifest.json").unlink()
    problems = validate(run)
    assert len(problems) == 1
    assert "manifest.json" in problems[0]


def test_looks_at_monitors_that_go_backwards_are_a_problem(run: Path):
    rows = [("GPU-1", 0, 5, 1.0, 0.0, 0.1, 0.0), ("GPU-1", 4, 3, 1.0, 0.0, -0.1, 0.0)]
    write_monitors(rank_folder(run, 0), pl.DataFrame(rows, schema=MONITORS.schema, orient="row"))
    assert validate(run) == [
        "rank 0: monitors: 1 row(s) end before they start (start_ns > end_ns), first row 1",
        "rank 0: monitors: 1 row(s) end_ns goes backwards, first row 1",
        "rank 0: monitors: 1 row(s) dram is negative, first row 1",
    ]
