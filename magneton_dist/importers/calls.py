"""The collectives of a trace, put together from kernels, their launches and what the profiler noted beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from magneton_dist.importers.columns import Columns, Comm
from magneton_dist.importers.enclosing import innermost
from magneton_dist.importers.events import ProcessGroup, number
from magneton_dist.importers.fields import NONE
from magneton_dist.records.schema import COLLECTIVES, I64, STR

# A name of the profiler, an annotation or a kernel, without signs -> the c10d operator; the first that fits.
_OPS = (
    (re.compile(r"^(nccl|gloo)?send$"), "send"),
    (re.compile(r"^(nccl|gloo)?recv(anysource)?$"), "recv_"),
    (re.compile(r"allreduce"), "allreduce_"),
    (re.compile(r"allgather"), "allgather_"),
    (re.compile(r"reducescatter"), "reduce_scatter_"),
    (re.compile(r"alltoall|sendrecv"), "alltoall_"),
    (re.compile(r"broadcast"), "broadcast_"),
    (re.compile(r"gather"), "gather_"),
    (re.compile(r"scatter"), "scatter_"),
    (re.compile(r"reduce"), "reduce_"),
    (re.compile(r"barrier"), "barrier"),
)
_ROOTED = ("broadcast_", "reduce_", "gather_", "scatter_", "send", "recv_")
_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "double": 8, "float64": 8, "long": 8, "longint": 8, "int64": 8,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "char": 1, "signedchar": 1, "unsignedchar": 1, "byte": 1,
    "bool": 1, "int8": 1, "uint8": 1, "float8e4m3fn": 1, "float8e5m2": 1, "complexfloat": 8,
}  # fmt: skip
_TYPES = {
    "float": "float32", "int": "int32", "double": "float64", "long": "int64", "longint": "int64", "half": "float16",
    "short": "int16", "char": "int8", "signedchar": "int8", "unsignedchar": "uint8", "byte": "uint8",
}  # fmt: skip


def operator(name: str) -> str:
    """The c10d operator that the profiler's, an annotation's or a kernel's `name` stands for; `name` if none."""
    plain = re.sub(r"\(.*|[^a-z]", "", name.lower().replace("coalesced", ""))
    return next((op for pattern, op in _OPS if pattern.search(plain)), name)


def device_calls(columns: Columns, device: pl.DataFrame, ops: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """One row per collective kernel: the calls on a GPU, by their launch.

    Args:
        columns: names and notes of the trace.
        device: collective kernels only, with their name as `kernel`, and `issue_ns` and `launch_thread` of their
            launches (null: not seen).
        ops, marks: frames of `columns`, the latter with its names as `annotation`.
    """
    at = device["issue_ns"].fill_null(NONE).to_numpy()
    thread = device["launch_thread"].fill_null(NONE).to_numpy()
    noted = ops.filter(pl.col("comm") != NONE)
    near = marks.filter(pl.col("annotation").str.contains("^(nccl|gloo):"))
    by_op, by_mark = innermost(noted, thread, at), innermost(near, thread, at)
    by_id = dict(noted.filter(pl.col("external") != NONE).select("external", "comm").iter_rows())
    same_id = device["external"] != device["correlation"]  # old traces write the one for the other
    rows = []
    kernels = device.select("comm", "external", "kernel").iter_rows()
    for n, (own, external, kernel) in enumerate(kernels):
        note = _note(columns, own)
        if note is None and same_id[n]:
            note = _note(columns, by_id.get(external, NONE))
        if note is None and by_op[n] >= 0:
            note = _note(columns, noted["comm"][int(by_op[n])])
        mark = near["annotation"][int(by_mark[n])] if by_mark[n] >= 0 else None
        beside = _note(columns, near["comm"][int(by_mark[n])]) if by_mark[n] >= 0 else None
        rows.append(_facts(mark or kernel, note, beside))
    start = device["start_ns"]
    issue = pl.Series(np.minimum(np.where(at >= 0, at, start.to_numpy()), start.to_numpy()))
    return _table(rows, issue, start, device["end_ns"])


def host_calls(columns: Columns, marks: pl.DataFrame) -> pl.DataFrame:
    """One row per annotated gloo collective: the calls on a CPU."""
    calls = marks.filter(pl.col("annotation").str.starts_with("gloo:")).sort("start_ns")
    rows = [_facts(name, None, _note(columns, comm)) for name, comm in calls.select("annotation", "comm").iter_rows()]
    return _table(rows, calls["start_ns"], calls["start_ns"], calls["end_ns"])


def of_only_group(calls: pl.DataFrame, groups: Sequence[ProcessGroup] | None) -> pl.DataFrame:
    """`calls` of which those without a group are of the only one that the job had, where it says so."""
    if groups is None or len(groups) != 1 or groups[0].name is None or (size := number(groups[0].size)) is None:
        return calls
    unknown = pl.col("group").is_null()
    return calls.with_columns(
        pl.when(unknown).then(pl.lit(str(groups[0].name))).otherwise("group").alias("group"),
        pl.when(unknown).then(size).otherwise("group_size").cast(pl.Int32).alias("group_size"),
        pl.when(unknown).then(0).otherwise("first").alias("first"),
        pl.when(unknown).then(1).otherwise("stride").alias("stride"),
    )


def _note(columns: Columns, row: int) -> Comm | None:
    return None if row == NONE else columns.comms[row]


def _facts(name: str, note: Comm | None, beside: Comm | None) -> dict[str, object]:
    """What is known of one call, from its note, else from the annotation or kernel `name`."""
    op = operator(note.op) if note is not None and note.op else operator(name)
    sized = note if note is not None and note.elements is not None else beside
    kind = re.sub(r"[^a-z0-9]", "", (sized.dtype or "").lower().removeprefix("c10::")) if sized else ""
    width = _BYTES.get(kind)
    elements = sized.elements if sized else None
    facts: dict[str, object] = {
        "op": op,
        "bytes": elements * width if elements is not None and width else None,
        "dtype": _TYPES.get(kind, kind) if width else None,
        "seq": note.seq if note else None,
        "root": note.peer if note and op in _ROOTED else None,
    }
    if note is not None and note.group is not None:
        facts |= {"group": _group(note), "group_size": note.size, "members": note.ranks, "first": note.first,
                  "stride": note.stride}  # fmt: skip
    return facts


def _group(note: Comm) -> str:
    """A name that only one group has: names count per process, so groups of other ranks may share them."""
    first = note.first if note.first is not None else note.ranks[0] if note.ranks else None
    if first in (0, None) and note.stride in (1, None):
        return f"{note.group}"
    return f"{note.group}@{first}+{note.stride if note.stride is not None else '?'}"


_SCHEMA = {
    "op": STR, "bytes": I64, "dtype": STR, "seq": I64, "root": I64, "group": STR, "group_size": I64,
    "members": pl.List(pl.Int64), "first": I64, "stride": I64,
}  # fmt: skip


def _table(rows: list[dict[str, object]], issue: pl.Series, start: pl.Series, end: pl.Series) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=_SCHEMA).with_columns(
        issue.alias("issue_ns"), start.alias("start_ns"), end.alias("end_ns")
    )
    return frame.with_columns(
        pl.lit("user").alias("origin"), pl.lit(None, pl.Boolean).alias("zero_payload"),
        pl.col("root").cast(pl.Int32), pl.col("group_size").cast(pl.Int32),
    )  # fmt: skip


def of_rank(calls: pl.DataFrame, rank: int, world_size: int) -> pl.DataFrame:
    """The `COLLECTIVES` table of a rank, its calls numbered in the order of issue.

    A call without a group is taken to be of the whole world.
    """
    place = (
        pl.when(pl.col("group").is_null())
        .then(rank)
        .when(pl.col("members").list.len() == pl.col("group_size"))
        .then(pl.col("members").list.eval(pl.element() == rank).list.arg_max())
        .when((pl.col("stride") > 0) & (pl.col("first") >= 0))
        .then((rank - pl.col("first")) // pl.col("stride"))
    )
    calls = calls.with_columns(
        pl.when(pl.col("group").is_null()).then(world_size).otherwise("group_size").alias("group_size"),
        place.alias("group_rank"),
    ).sort("issue_ns", "start_ns")
    inside = pl.col("group_rank").is_between(0, pl.col("group_size") - 1)
    calls = calls.with_columns(
        pl.when(inside).then("group_rank").alias("group_rank"), pl.int_range(pl.len()).alias("call_id")
    )
    return calls.select(*COLLECTIVES.schema).cast(pl.Schema(COLLECTIVES.schema))
