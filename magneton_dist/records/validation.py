"""Is a record sound? Problems in words, none for a good one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.host_times import HOST_TIMES, IDLE, read_host_times
from magneton_dist.records.monitors import MONITORS, read_monitors
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import RankRecord, RunRecord

# table -> columns that must be there in every row
REQUIRED: dict[str, list[str]] = {
    "steps": ["step", "start_ns", "end_ns", "kind"],
    "stamps": ["t_ns", "cpu_ns", "delay_ns"],
    # a trace may name neither the group nor the size
    "collectives": ["call_id", "group_size", "op", "origin", "issue_ns", "start_ns"],
    "collective_sums": ["group", "op", "origin", "count", "bytes", "duration_ns"],
    "ops": ["op_id", "step", "name", "phase", "inputs", "outputs", "arguments"],
    "values": ["value_id", "storage", "version", "shape", "stride", "dtype", "device", "bytes", "role"],
    "fingerprints": ["values", "exact", "elements", "l1", "l2", "l4", "shape"],
    "activities": ["device", "kind", "name", "start_ns", "end_ns"],
    "power": ["device", "t_ns", "sensor"],
    "counters": ["device", "t_ns", "sensor"],
    "stacks": ["stack_id", "frames"],
    "knobs": ["name"],
    "parameters": ["name", "shape", "dtype", "exact"],
    "marks": ["name", "t_ns"],
    "faults": ["where", "message"],
    HOST_TIMES.name: ["kind", "what", "count", "duration_ns"],
    MONITORS.name: ["device", "start_ns", "end_ns"],
}
UNIQUE = {
    "steps": "step",
    "collectives": "call_id",
    "ops": "op_id",
    "values": "value_id",
    "stacks": "stack_id",
    "knobs": "name",
    "parameters": "name",
}
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("steps", "kind"): ("warm-up", "measured", "kernels", "traced"),
    ("ops", "phase"): ("forward", "backward", "optimizer", "other"),
    ("values", "role"): ("parameter", "buffer", "gradient", "optimizer_state", "input", "activation"),
    ("activities", "kind"): ("kernel", "memcpy", "memset", "collective", "cpu"),
    (HOST_TIMES.name, "kind"): (*IDLE, "sync", "spin"),
}
# (table, list or id column, table it points to, its id column); null ids say "unknown"
REFERENCES = [
    ("ops", "inputs", "values", "value_id"),
    ("ops", "outputs", "values", "value_id"),
    ("fingerprints", "values", "values", "value_id"),
    ("ops", "stack_id", "stacks", "stack_id"),
    ("ops", "step", "steps", "step"),
    ("collectives", "stack_id", "stacks", "stack_id"),
    ("collective_sums", "stack_id", "stacks", "stack_id"),
    ("activities", "op_id", "ops", "op_id"),
    (HOST_TIMES.name, "stack_id", "stacks", "stack_id"),
]


@dataclass(frozen=True)
class Rule:
    """Rows of `table` for which `wrong` holds break the rule."""

    table: str
    wrong: pl.Expr
    words: str


def _interval(table: str, start: str, end: str) -> Rule:
    return Rule(table, pl.col(end) < pl.col(start), f"end before they start ({start} > {end})")


def _grows(table: str, column: str, over: str | None = None) -> Rule:
    growth = pl.col(column).diff()
    return Rule(table, (growth.over(over) if over else growth) < 0, f"{column} goes backwards")


def _negative(table: str, column: str) -> Rule:
    return Rule(table, pl.col(column) < 0, f"{column} is negative")


RULES = [
    _interval("steps", "start_ns", "end_ns"),
    Rule("steps", pl.col("start_ns") < pl.col("end_ns").shift(), "start before the step before them ends"),
    _negative("steps", "units"),
    # not its counters: two threads stamp, and one may read its time before and its counters after the other
    _grows("stamps", "t_ns"),
    _interval("collectives", "issue_ns", "start_ns"),
    _interval("collectives", "start_ns", "end_ns"),
    _negative("collectives", "bytes"),
    Rule(
        "collectives",
        (pl.col("group_size") < 1) | ~pl.col("group_rank").is_between(0, pl.col("group_size") - 1),
        "group_rank is not a rank of the group",
    ),
    *(_negative("collective_sums", column) for column in ("count", "bytes", "duration_ns")),
    _interval("ops", "start_ns", "end_ns"),
    *(_negative("values", column) for column in ("version", "offset", "bytes")),
    Rule(
        "values",
        pl.col("shape").list.len() != pl.col("stride").list.len(),
        "shape and stride differ in length",
    ),
    _interval("activities", "start_ns", "end_ns"),
    _grows("power", "t_ns", over="device"),
    _negative("power", "watts"),
    _grows("counters", "t_ns", over="device"),
    _grows("counters", "joules", over="device"),
    _grows("marks", "t_ns"),
    *(_negative(HOST_TIMES.name, column) for column in ("count", "duration_ns")),
    _interval(MONITORS.name, "start_ns", "end_ns"),
    _grows(MONITORS.name, "end_ns", over="device"),
    *(_negative(MONITORS.name, column) for column in ("sm", "tensor", "dram", "nvlink_bytes_s")),
]


def validate(run: RunRecord | str | Path) -> list[str]:
    """Every problem of one run's record, in words; an empty list means it is sound.

    Checked: the manifest, ranks and tables that are missing, columns and types, ids that are unique and
    point to something, words from the fixed lists, times in order, quantities that cannot be negative.
    """
    record = run if isinstance(run, RunRecord) else RunRecord(Path(run))
    problems: list[str] = []
    try:
        world = record.manifest.world_size
        problems += [f"rank {rank}: left no tables" for rank in record.missing]
        strangers = [rank for rank in record.ranks if rank >= world]
        problems += [f"rank {rank}: is no rank of a world of {world}" for rank in strangers]
    except RecordError as error:
        problems.append(str(error))
    for rank, tables in record.ranks.items():
        problems += [f"rank {rank}: {problem}" for problem in _rank_problems(tables)]
    return problems


def _rank_problems(record: RankRecord) -> Iterator[str]:
    missing = record.missing
    yield from (f"{name}: missing" for name in missing)
    tables: dict[str, pl.DataFrame] = {}
    for name in TABLES.keys() - set(missing):
        try:
            tables[name] = record.table(name)
        except RecordError as error:
            yield str(error)
    for name, read in ((HOST_TIMES.name, read_host_times), (MONITORS.name, read_monitors)):
        try:
            tables[name] = read(record.folder)
        except RecordError as error:
            yield str(error)
    for name in (name for name in REQUIRED if name in tables):
        yield from (f"{name}: {problem}" for problem in _table_problems(name, tables[name]))
    for table, column, target, key in REFERENCES:
        if table in tables and target in tables:
            ids = tables[table][column]
            ids = (ids.explode(empty_as_null=True) if ids.dtype == pl.List else ids).drop_nulls().unique()
            lost = ids.filter(~ids.is_in(tables[target][key].implode())).sort()
            if len(lost):
                yield f"{table}: {column} names {len(lost)} {key}(s) that {target} lacks, first {lost[0]}"
    if "ops" in tables:
        yield from (f"ops: {problem}" for problem in _argument_problems(tables["ops"]))


def _table_problems(name: str, frame: pl.DataFrame) -> Iterator[str]:
    for column in REQUIRED[name]:
        if nulls := frame[column].null_count():
            yield f"{column} is null in {nulls} row(s)"
    if name in UNIQUE and (twice := int(frame[UNIQUE[name]].is_duplicated().sum())):
        yield f"{UNIQUE[name]} is not unique in {twice} row(s)"
    for (table, column), words in WORDS.items():
        if table == name:
            others = frame.filter(~pl.col(column).is_in(words))[column].unique().sort()
            yield from (f"{column} {word!r} is none of {', '.join(words)}" for word in others)
    for rule in RULES:
        if rule.table == name:
            wrong = frame.select(rule.wrong.fill_null(False).arg_true()).to_series()
            if len(wrong):
                yield f"{len(wrong)} row(s) {rule.words}, first row {wrong[0]}"


def _argument_problems(ops: pl.DataFrame) -> Iterator[str]:
    for op_id, text in ops.select("op_id", "arguments").drop_nulls().iter_rows():
        try:
            if not isinstance(json.loads(text), list):
                yield f"arguments of op {op_id} are no JSON array"
        except ValueError:
            yield f"arguments of op {op_id} are no JSON"
