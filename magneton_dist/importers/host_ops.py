"""What a rank without a device computed, from the operators of its trace."""

from __future__ import annotations

import polars as pl

from magneton_dist.importers.names import Names
from magneton_dist.records.schema import ACTIVITIES, I64

# they issue a collective or wait for one, which is no computing
COMMUNICATES = r"^(c10d::|_?c10d_functional|record_param_comms|gloo:|mpi:)|wait_tensor"


def computing(ops: pl.DataFrame, names: Names) -> pl.DataFrame:
    """`ACTIVITIES`: the outermost operators of each thread, those of collectives left out.

    Args:
        ops: start_ns, end_ns, name and thread of all operators.
        names: their names.
    """
    ops = ops.select("start_ns", "end_ns", "thread", names.column(pl.col("name")).alias("name"))
    ops = ops.filter(~pl.col("name").str.contains(COMMUNICATES)).sort("start_ns", "end_ns", descending=[False, True])
    until = pl.col("end_ns").cum_max().shift(1).over("thread")
    outermost = ops.filter((pl.col("start_ns") >= until).fill_null(True))
    return outermost.select(
        pl.lit("cpu").alias("device"), pl.col("thread").alias("stream"), pl.lit("kernel").alias("kind"), "name",
        "start_ns", "end_ns", pl.lit(None, I64).alias("op_id"),
        *(pl.lit(None, kind).alias(name) for name, kind in ACTIVITIES.schema.items() if name not in _KNOWN),
    ).select(*ACTIVITIES.schema).cast(pl.Schema(ACTIVITIES.schema))  # fmt: skip


_KNOWN = ("device", "stream", "kind", "name", "start_ns", "end_ns", "op_id")
