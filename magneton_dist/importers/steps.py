"""The steps of a trace: as the profiler numbered them, or between an optimizer's, or one."""

from __future__ import annotations

import numpy as np
import polars as pl

from magneton_dist.records.schema import F64, I64, STR

STEP = r"^ProfilerStep#(\d+)"


def steps_of(marks: pl.DataFrame, start: int, end: int, drained: int) -> tuple[pl.DataFrame, str]:
    """`STEPS` by the profiler's marks, else by the optimizer's, else the whole trace as one.

    Args:
        marks: with their names as `annotation`.
        start, end: of the trace, ns.
        drained: when the device had done all, ns.

    Returns:
        The steps, and where they have no numbers of the profiler how they came about.
    """
    named = marks.with_columns(
        pl.col("annotation").str.extract(STEP).cast(I64, strict=False).alias("step")
    ).filter(pl.col("step").is_not_null() & (pl.col("end_ns") > pl.col("start_ns")))
    if named.height:
        named = named.unique("step", keep="first", maintain_order=True).sort("start_ns")
        following = pl.col("start_ns").shift(-1)
        # the device drains after the host has left the last step
        last = pl.max_horizontal("end_ns", pl.lit(drained))
        return _table(named["step"], named["start_ns"], named.select(
            pl.when(following.is_null()).then(last).otherwise(pl.min_horizontal("end_ns", following))
        ).to_series()), ""  # fmt: skip
    optimizer = marks.filter(pl.col("annotation").str.starts_with("Optimizer.step#"))["end_ns"].unique().sort()
    inner = [int(t) for t in optimizer[:-1]]
    edges = pl.Series([start, *inner, end], dtype=I64)
    how = f"inferred from {len(optimizer)} optimizer steps" if inner else "taken to be one"
    steps = _table(pl.Series(range(len(edges) - 1), dtype=I64), edges[:-1], edges[1:])
    return steps, f"no ProfilerStep in the trace: its steps are {how}"


def step_of(steps: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The step around each instant; null outside the steps."""
    t = at.to_numpy()
    row = np.searchsorted(steps["start_ns"].to_numpy(), t, side="right") - 1
    inside = (row >= 0) & (t < steps["end_ns"].to_numpy()[row])
    found = steps["step"].gather(pl.Series(np.maximum(row, 0)))
    return found.set(pl.Series(~inside), None)


def _table(step: pl.Series, start: pl.Series, end: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"step": step, "start_ns": start, "end_ns": end}).select(
        "step", "start_ns", "end_ns", pl.lit("kernels").alias("kind"), pl.lit(None, F64).alias("units"),
        pl.lit(None, STR).alias("unit"),
    )  # fmt: skip
