"""Annotated stretches of a graph as one operator each; `tracer.annotate` makes the marks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from magneton_dist.tracer.rows import ENTER, LEAVE

PREFIX = "annotated"
_VERSION = ["value_id", "storage", "version"]

_Uses = list[tuple[list[int], list[int]]]  # inputs and outputs of every row


class _Stretch(NamedTuple):
    """Rows of the operators from one mark to the other, both included."""

    first: int
    last: int

    @property
    def rows(self) -> range:
        return range(self.first, self.last + 1)


def fold(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Each annotated stretch of `ops` as one operator; what only the stretches used leaves the other tables.

    The folded operator reads its named inputs, then whatever else it read from outside; it makes its named
    outputs, then whatever else it made that is read outside or lies in a storage from outside. Its phase is the
    one in which it ended. An end that is missing, because the recording ended first, leaves its operators as
    they are. Without any mark the tables are returned unchanged.

    Args:
        tables: of one rank, by name; operators in order of execution.
    """
    ops, values, fingerprints = tables["ops"], tables["values"], tables["fingerprints"]
    marked = ops["name"].is_in([ENTER, LEAVE])
    if not marked.any():
        return tables
    stretches = _stretches(ops)
    inside = np.zeros(len(ops), bool)
    for stretch in stretches:
        inside[stretch.first : stretch.last + 1] = True
    versions = {value: (storage, version) for value, storage, version in values.select(_VERSION).iter_rows()}
    uses = ops.select("inputs", "outputs").rows()
    read_by = _readers(uses, marked.to_list())
    folded = [_one(ops, stretch, uses, read_by, versions) for stretch in stretches]
    rest = ops.filter(~pl.Series(inside) & ~marked)
    ops = pl.concat([rest, pl.DataFrame(folded, schema=ops.schema, orient="row")]).sort("step", "op_id")
    used = pl.concat([ops["inputs"].explode(), ops["outputs"].explode()]).drop_nulls().unique()
    held = pl.col("values").list.set_intersection(used.implode())
    return {
        **tables,
        "ops": ops,
        "values": values.filter(pl.col("value_id").is_in(used.implode())),
        "fingerprints": fingerprints.with_columns(held).filter(pl.col("values").list.len() > 0),
    }


def _stretches(ops: pl.DataFrame) -> list[_Stretch]:
    """The outermost pairs of marks, each within one step."""
    marks = ops.with_row_index("row").filter(pl.col("name").is_in([ENTER, LEAVE])).select("row", "name", "step")
    found: list[_Stretch] = []
    begun: list[tuple[int, int]] = []  # row, step
    for row, name, step in marks.iter_rows():
        begun = [mark for mark in begun if mark[1] == step]
        if name == ENTER:
            begun.append((row, step))
        elif begun:
            first, _ = begun.pop()
            found = [*(stretch for stretch in found if stretch.first < first), _Stretch(first, row)]
    return found


def _readers(uses: _Uses, marked: list[bool]) -> dict[int, list[int]]:
    """Rows that read each value, marks left out."""
    readers: dict[int, list[int]] = {}
    for row, (inputs, _) in enumerate(uses):
        for value in () if marked[row] else inputs:
            readers.setdefault(value, []).append(row)
    return readers


def _one(
    ops: pl.DataFrame,
    stretch: _Stretch,
    uses: _Uses,
    read_by: dict[int, list[int]],
    versions: dict[int, tuple[int, int]],
) -> tuple[Any, ...]:
    enter, leave = ops.row(stretch.first, named=True), ops.row(stretch.last, named=True)
    inputs, made = list(enter["inputs"]), dict[int, None]()
    for row in range(stretch.first + 1, stretch.last):
        read, written = uses[row]
        inputs += [value for value in read if value not in made]
        made.update(dict.fromkeys(value for value in written if value not in read))
    written_through = _written_through(inputs, made, versions)
    outputs = [
        *leave["inputs"],
        *(v for v in made if v in written_through or any(r not in stretch.rows for r in read_by.get(v, ()))),
    ]
    name = json.loads(enter["arguments"])[0]
    arguments = [*_named(enter, "value"), *_named(leave, "output")]
    return (
        enter["op_id"],
        enter["step"],
        f"{PREFIX}.{name}",
        leave["phase"],
        list(dict.fromkeys(inputs)),
        list(dict.fromkeys(outputs)),
        json.dumps(arguments, separators=(",", ":")),
        enter["stack_id"],
        enter["start_ns"],
        leave["end_ns"],
    )


def _written_through(
    inputs: list[int], made: Iterable[int], versions: dict[int, tuple[int, int]]
) -> set[int]:
    """The values of `made` that are what a storage from outside holds at the end."""
    before: dict[int, int] = {}  # versions of those storages at the beginning
    after: dict[int, int] = {}
    for value in inputs:
        if value in versions:
            before.setdefault(*versions[value])
    known = [(value, *versions[value]) for value in made if value in versions]
    for _, storage, version in known:
        if storage not in before and storage not in after and version:
            before[storage] = version - 1  # overwritten, never read
        after[storage] = version
    return {v for v, storage, version in known if before.get(storage, version) < version == after[storage]}


def _named(mark: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The tensors of a mark as ``{"name": ..., key: {"v": ...}}``."""
    _, tensors, names = json.loads(mark["arguments"])
    return [{"name": name, key: tensor} for name, tensor in zip(names, tensors, strict=True)]
