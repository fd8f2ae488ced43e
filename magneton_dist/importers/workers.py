"""A timeline of operations as the record of one run: every worker of the pipeline is a rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from magneton_dist.importers.calls import of_rank
from magneton_dist.importers.record import VARIANT
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.operations import write_operations
from magneton_dist.records.schema import ACTIVITIES, I32, I64, MARKS, STEPS, STR, TABLES
from magneton_dist.records.store import write_manifest, write_rank

HOST = "timeline"
# operation -> c10d operator, and the step from the own stage to the peer's for messages
_OPS = {
    "forward-send": ("send", 1), "forward-recv": ("recv_", -1), "backward-send": ("send", -1),
    "backward-recv": ("recv_", 1), "params-all-gather": ("allgather_", 0),
    "grads-reduce-scatter": ("reduce_scatter_", 0), "embedding-grads-all-reduce": ("allreduce_", 0),
    "optimizer-clip-main-grad": ("allreduce_", 0),
}  # fmt: skip


def write_workers(
    operations: pl.DataFrame, run: Path, *, name: str, started: str, meter: MeterUsed, dropped: int = 0,
    missing: Sequence[str] = (),
) -> Manifest:
    """Write the record.

    Args:
        operations: schema `records.operations.OPERATIONS`.
        run: folder of the run, not there yet.
        name, started: of the audit.
        meter: of every worker.
        dropped: operations that the timeline has and these lack, for their negative durations.
        missing: what else was given and is not in the record, in words.
    """
    replicas = int(operations["dp"].to_numpy().max()) + 1
    numbered = operations.with_columns((pl.col("stage") * replicas + pl.col("dp")).alias("rank"))
    groups = _groups(numbered)
    ranks = []
    for (key,), worker in numbered.sort("start_ns", "end_ns").group_by("rank", maintain_order=True):
        rank = int(str(key))
        device = f"dp {rank % replicas} of stage {rank // replicas}"  # the timeline names no other
        calls = worker.filter(pl.col("call").is_not_null()).join(groups, on=["call", "step", "rank"], how="left")
        empty = {table.name: table.empty() for table in TABLES.values()}
        tables = {
            "steps": _steps(worker),
            "activities": _activities(worker, device),
            "marks": _capture(worker),
            "collectives": of_rank(_calls(calls), rank, replicas),
        }
        write_rank(run, rank, empty | tables)
        ranks.append(RankRun(rank, 0, HOST, device=device, meter=meter))
    manifest = Manifest(
        audit=name, variant=VARIANT, repeat=0, started=started, world_size=max(r.rank for r in ranks) + 1, command=[],
        exit_code=0, disturbed=[f"dropped {dropped} operation(s) with negative durations"] if dropped else [],
        ranks=sorted(ranks, key=lambda r: r.rank), clocks={HOST: Clock()}, versions={},
        missing=list(missing),
    )  # fmt: skip
    write_operations(run, operations)
    write_manifest(run, manifest)
    return manifest


def _groups(operations: pl.DataFrame) -> pl.DataFrame:
    """Per call and rank its group: name, size and this rank's place in it."""
    stages = int(operations.select(pl.col("stage").max()).item()) + 1
    calls = operations.filter(pl.col("call").is_not_null()).select("step", "call", "rank", "dp", "stage", "message")
    others = pl.col("rank").rank("dense").over("step", "call") - 1
    size = pl.col("rank").n_unique().over("step", "call")
    return calls.select(
        "step", "call", "rank",
        pl.when("message").then(pl.format("pipeline of dp {}", "dp")).otherwise("call").alias("group"),
        pl.when("message").then(stages).otherwise(size).cast(I32).alias("group_size"),
        pl.when("message").then("stage").otherwise(others).cast(I64).alias("place"),
    ).unique()  # fmt: skip


def _steps(worker: pl.DataFrame) -> pl.DataFrame:
    steps = worker.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
    following = pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns"))
    return steps.select(
        "step", "start_ns", pl.min_horizontal("end_ns", following).alias("end_ns"), pl.lit("kernels").alias("kind"),
        pl.lit(None, pl.Float64).alias("units"), pl.lit(None, STR).alias("unit"),
    ).cast(pl.Schema(STEPS.schema))  # fmt: skip


def _activities(worker: pl.DataFrame, device: str) -> pl.DataFrame:
    communicates = pl.col("call").is_not_null() | pl.col("op").str.contains("all-reduce")
    return worker.select(
        pl.lit(device).alias("device"), pl.lit(0, I64).alias("stream"),
        pl.when(communicates).then(pl.lit("collective")).otherwise(pl.lit("kernel")).alias("kind"),
        pl.col("op").alias("name"), "start_ns", "end_ns", pl.lit(None, I64).alias("op_id"),
        pl.lit(None, I64).alias("graph_node"), pl.lit(None, pl.Float64).alias("sm_share"),
    ).cast(pl.Schema(ACTIVITIES.schema))  # fmt: skip


def _capture(worker: pl.DataFrame) -> pl.DataFrame:
    start, end = worker["start_ns"].to_numpy().min(), worker["end_ns"].to_numpy().max()
    detail = json.dumps({"start_ns": int(start), "activities": worker.height})
    return pl.DataFrame({"name": ["kernels"], "t_ns": [int(end) + 1], "detail": [detail]}, schema=MARKS.schema)


def _calls(calls: pl.DataFrame) -> pl.DataFrame:
    """What `calls.of_rank` numbers; `first` and `stride` are such that they give each member its place."""
    op = pl.col("op").replace_strict({name: op for name, (op, _) in _OPS.items()}, return_dtype=STR)
    shift = pl.col("op").replace_strict({name: shift for name, (_, shift) in _OPS.items()}, return_dtype=I64)
    return calls.select(
        op.alias("op"), pl.lit(None, I64).alias("bytes"), pl.lit(None, STR).alias("dtype"),
        pl.lit(None, I64).alias("seq"),
        pl.when("message").then(pl.col("stage") + shift).cast(I32).alias("root"),
        "group", "group_size", pl.lit(None, pl.List(I64)).alias("members"),
        (pl.col("rank") - pl.col("place")).alias("first"), pl.lit(1, I64).alias("stride"),
        pl.col("start_ns").alias("issue_ns"), "start_ns", "end_ns", pl.lit("user").alias("origin"),
        pl.lit(None, pl.Boolean).alias("zero_payload"), "step", pl.lit(None, I64).alias("stack_id"),
    )  # fmt: skip
