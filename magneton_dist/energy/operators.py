"""What each operator of a traced step costs, until it is measured or replayed.

A rank's compute energy per step is shared out over the operators of its traced step, by time and the watts of
the operator's class: the shares add up to what the rank's states say, whatever the watts. Collectives take no
part; their waits and transfers are states of their own.
"""

from __future__ import annotations

import re

import polars as pl

from magneton_dist.meters.profile import Profile
from magneton_dist.records.schema import F64, I64, STR, Column, Table

OPERATOR_ENERGY = Table("operator_energy", "one operator of a traced step and what it costs in a step", {
    "op_id": Column(I64, "", "operator"),
    "step": Column(I64, "", "traced step"),
    "kind": Column(STR, "", "class of operator: a key of the profile's operators, layout or collective"),
    "seconds": Column(F64, "s", "time on the host (CPU) or the device; null for collectives"),
    "joules": Column(F64, "J", "share of the rank's compute energy per step; null when that is unknown"),
    "bytes": Column(I64, "bytes", "read and written"),
})

# First match wins. Names are aten's, without namespace and overload.
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"^(c10d|_c10d_functional|symm_mem)\.")),
    ("attention", re.compile(r"attention|flash|efficient_attn|sdpa|mha", re.I)),
    ("matmul", re.compile(r"(^|_|\.)(addmm|baddbmm|addbmm|b?mm|matmul|linear|addmv|mv|dot|conv\w*|einsum)(_|\.|$)")),
    ("layer_norm", re.compile(r"layer_norm|rms_norm|group_norm|batch_norm", re.I)),
    ("layout", re.compile(
        r"(^|\.)(view|_unsafe_view|reshape|t|transpose|permute|expand|slice|select|split\w*|unsqueeze|squeeze|detach|"
        r"alias|as_strided|unbind|chunk|narrow|empty\w*|lift_fresh)(\.|$)"
    )),
)  # fmt: skip
_TINY_BYTES = 1 << 16  # below it a copy or an elementwise operator draws hardly more than an idle device


def operator_class(name: str, moved_bytes: int) -> str:
    """Class of an operator by its name (``aten.addmm.default``) and the bytes it reads and writes."""
    for kind, pattern in _CLASSES:
        if pattern.search(name):
            return kind
    return "tiny_copy" if moved_bytes < _TINY_BYTES else "memory_bound"


def operator_classes(ops: pl.DataFrame, moved: pl.Series) -> list[str]:
    """Class of each operator of `ops`, which reads and writes `moved` bytes."""
    return [operator_class(name, n) for name, n in zip(ops["name"].to_list(), moved.to_list(), strict=True)]


def operator_energy(
    ops: pl.DataFrame, values: pl.DataFrame, compute_j_per_step: float | None, profile: Profile
) -> pl.DataFrame:
    """Share a rank's compute energy per step out over the operators of its traced steps.

    Args:
        ops, values: the rank's tables.
        compute_j_per_step: joules of the states compute and overlap per measured step; None when unknown.
        profile: watts by operator class, used as weights; the result is modelled or apportioned, never measured.

    Returns:
        `OPERATOR_ENERGY`, one row per operator; joules of one step add up to `compute_j_per_step`.
    """
    moved = moved_bytes(ops, values)
    kinds = operator_classes(ops, moved)
    watts = {key: w.nominal for key, w in profile.operators.items()}
    idle = profile.watts["context_idle"].nominal
    seconds = (ops["end_ns"] - ops["start_ns"]) / 1e9
    table = pl.DataFrame({
        "op_id": ops["op_id"], "step": ops["step"], "kind": pl.Series(kinds, dtype=pl.String), "seconds": seconds,
        "bytes": moved,
    })  # fmt: skip
    collective = pl.col("kind") == "collective"
    weight = pl.col("seconds") * pl.col("kind").replace_strict(watts, default=idle, return_dtype=pl.Float64)
    table = table.with_columns(
        pl.when(~collective).then("seconds").alias("seconds"),
        pl.when(~collective).then(weight).otherwise(0.0).alias("weight"),
    )
    total = pl.col("weight").sum().over("step")
    share = pl.when(total > 0).then(pl.col("weight") / total)
    joules = pl.lit(compute_j_per_step, pl.Float64) * share
    return table.with_columns(joules.alias("joules")).select(*OPERATOR_ENERGY.schema)


def moved_bytes(ops: pl.DataFrame, values: pl.DataFrame) -> pl.Series:
    """Bytes each operator reads and writes, as if every value were touched once."""
    size = values.select("value_id", "bytes")
    moved = (
        ops.select("op_id", pl.concat_list("inputs", "outputs").alias("value_id"))
        .explode("value_id")
        .join(size, on="value_id", how="left")
        .group_by("op_id")
        .agg(pl.col("bytes").sum())
    )
    return ops.select("op_id").join(moved, on="op_id", how="left", maintain_order="left")["bytes"].fill_null(0)
