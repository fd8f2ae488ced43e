"""Spool segments to tables: decoded against the declared row types, columnar at once.

A row that does not fit (a torn line, an unknown kind, a wrong type) is left out and named in the `faults`
table; everything else of its segment is kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import or_
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.annotations import fold
from magneton_dist.records.schema import FRAME, IDS, TABLES, Table
from magneton_dist.tracer.rows import FIELDS

# The spool's row kinds and the tables they fill. Power and counters come from the meters instead.
TABLE_OF: dict[str, str] = {
    "stamp": "stamps",
    "step": "steps",
    "collective": "collectives",
    "collective_sum": "collective_sums",
    "op": "ops",
    "value": "values",
    "fingerprint": "fingerprints",
    "activity": "activities",
    "stack": "stacks",
    "knob": "knobs",
    "parameter": "parameters",
    "mark": "marks",
    "fault": "faults",
}
ORDER: dict[str, list[str]] = {
    "stamps": ["t_ns"],
    "steps": ["start_ns", "step"],
    "collectives": ["issue_ns", "call_id"],
    "ops": ["step", "op_id"],
    "values": ["value_id"],
    "activities": ["start_ns"],
    "stacks": ["stack_id"],
    "marks": ["t_ns"],
}
# A later row with the same key replaces an earlier one; file order decides.
KEY: dict[str, str] = {"collectives": "call_id", "stacks": "stack_id", "values": "value_id"}

BATCH_ROWS = 200_000  # rows held as objects before they become columns

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_TYPES: dict[pl.DataType, Any] = {
    pl.Int64(): _Int64 | None,
    pl.Int32(): _Int32 | None,
    pl.Float64(): float | None,
    pl.String(): str | None,
    pl.Boolean(): bool | None,
    IDS: list[_Int64],
    pl.List(pl.Float64()): list[float],
    pl.List(FRAME): list[tuple[str, _Int32, str]],
}


def _row_type(kind: str, table: Table) -> type[msgspec.Struct]:
    fields = [(name, _TYPES[table.schema[name]]) for name in FIELDS[kind]]
    return msgspec.defstruct(kind, fields, tag=kind, array_like=True, gc=False)


_ROW_TYPES = {kind: _row_type(kind, TABLES[name]) for kind, name in TABLE_OF.items()}
_ANY_ROW: Any = reduce(or_, _ROW_TYPES.values())
_DECODER = msgspec.json.Decoder(type=_ANY_ROW)

Batch = dict[str, list[msgspec.Struct]]  # row kind -> rows
LeftOut = Counter[tuple[str, str]]  # (segment, why) -> rows


def assemble(segments: Path) -> dict[str, pl.DataFrame]:
    """Every table of one rank's spool, schema-exact and sorted by time.

    `segments` is the folder of ``NNNNNN.jsonl`` files; a last ``.open`` one, left by a process that died, is
    read too. Collectives keep their last row per call. What had to be left out is a row of `faults`.

    Raises:
        RecordError: `segments` is no folder.
    """
    if not segments.is_dir():
        raise RecordError("no spool segments here", where=str(segments), do="the rank may never have started")
    left_out: LeftOut = Counter()
    parts: dict[str, list[pl.DataFrame]] = {name: [TABLES[name].empty()] for name in TABLE_OF.values()}
    batch: Batch = {kind: [] for kind in TABLE_OF}
    held = 0
    for path in _segment_files(segments):
        rows = list(_rows(path, left_out))
        for row in rows:
            batch[type(row).__name__].append(row)
        held += len(rows)
        if held >= BATCH_ROWS:
            _flush(batch, parts)
            held = 0
    _flush(batch, parts)
    parts["faults"].append(_faults(left_out))
    tables = {name: _in_order(name, pl.concat(frames)) for name, frames in parts.items()}
    tables["steps"] = _without_void_steps(tables["steps"], tables["marks"])
    tables["collective_sums"] = _summed(tables["collective_sums"])
    return fold(tables)


def _segment_files(segments: Path) -> list[Path]:
    return sorted(path for path in segments.iterdir() if path.suffix in (".jsonl", ".open"))


def _rows(path: Path, left_out: LeftOut) -> Iterable[msgspec.Struct]:
    data = path.read_bytes()
    try:
        rows: list[msgspec.Struct] = _DECODER.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _rows_one_by_one(path.name, data, left_out)
    return rows


def _rows_one_by_one(segment: str, data: bytes, left_out: LeftOut) -> Iterator[msgspec.Struct]:
    """The slow way, for a segment with at least one line that does not fit."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # json also reads NaN and Infinity, which a diverged model's sums are
            yield msgspec.convert(json.loads(line), _ANY_ROW)
        except msgspec.ValidationError as error:
            left_out[segment, _misfit(line, error)] += 1
        except ValueError:
            # only the text after the last newline can be torn; anything else was damaged
            left_out[segment, "a torn last line" if number == len(lines) else "no JSON"] += 1


def _misfit(line: bytes, error: msgspec.ValidationError) -> str:
    row = json.loads(line)
    kind = row[0] if isinstance(row, list) and row and isinstance(row[0], str) else None
    if kind is None:
        return "not a row"
    if kind not in TABLE_OF:
        return f"unknown row kind {kind[:40]!r}"
    return f"a {kind!r} row that does not fit its table: {error}"


def _flush(batch: Batch, parts: dict[str, list[pl.DataFrame]]) -> None:
    for kind, rows in batch.items():
        if rows:
            parts[TABLE_OF[kind]].append(_frame(kind, rows))
            rows.clear()


def _frame(kind: str, rows: list[msgspec.Struct]) -> pl.DataFrame:
    schema = TABLES[TABLE_OF[kind]].schema
    return pl.DataFrame([_series(n, schema[n], [getattr(r, n) for r in rows]) for n in FIELDS[kind]])


def _series(name: str, dtype: pl.DataType, values: list[Any]) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, values, dtype=dtype)
    # One flat column cut at the rows' lengths: polars' own way from nested lists is ten times slower.
    flat = list(chain.from_iterable(values))
    items = _frames(name, flat) if dtype.inner == FRAME else pl.Series(name, flat, dtype=dtype.inner)
    row = np.arange(len(values))
    owner = np.repeat(row, np.fromiter(map(len, values), np.int64, len(values)))
    lists = pl.DataFrame({"row": owner, name: items}).group_by("row", maintain_order=True).agg(name)
    every = pl.DataFrame({"row": row}).join(lists, on="row", how="left", maintain_order="left")
    return every[name].fill_null([]).cast(dtype)


def _frames(name: str, frames: list[tuple[str, int, str]]) -> pl.Series:
    file, line, function = zip(*frames, strict=True) if frames else ((), (), ())
    columns = pl.DataFrame({"file": file, "line": line, "function": function})
    return columns.to_struct(name).cast(FRAME)


def _faults(left_out: LeftOut) -> pl.DataFrame:
    rows = [
        ("spool", f"{segment}: {count} row(s) left out: {why}") for (segment, why), count in left_out.items()
    ]
    return pl.DataFrame(rows, schema=TABLES["faults"].schema, orient="row")


def _without_void_steps(steps: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Once the job says itself where its steps end, what the tracer took for steps before is void."""
    said_ns = marks.filter(pl.col("name") == "steps_by_call")["t_ns"].min()
    return steps if said_ns is None else steps.filter(pl.col("end_ns") > said_ns)


def _summed(sums: pl.DataFrame) -> pl.DataFrame:
    """The rows of a key are differences since the one before."""
    key = ["group", "op", "origin", "stack_id"]
    return sums.group_by(key, maintain_order=True).agg(pl.exclude(key).sum()).select(sums.columns)


def _in_order(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    if name in KEY:
        frame = frame.unique(KEY[name], keep="last", maintain_order=True)
    return frame.sort(ORDER[name], maintain_order=True) if name in ORDER else frame
