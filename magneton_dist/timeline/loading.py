"""How long a device idled while its host fetched data, from the marks around each batch."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.records.schema import I64
from magneton_dist.timeline.intervals import before, intervals
from magneton_dist.tracer.rows import LOADER_ENTER, LOADER_EXIT


class _Loader(msgspec.Struct, frozen=True):
    """Detail of a mark `LOADER_EXIT`."""

    what: str
    stack_id: int | None


def loading(marks: pl.DataFrame, states: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Rows of `HOST_TIMES` of kind loader: what of the fetches the device was idle for, by step, kind and stack.

    A batch counts for the step that it ends in. Where the device's state is not known nothing is counted.

    Args:
        marks, steps: of the rank.
        states: `timeline.states.STATES` of the rank.

    Raises:
        RecordError: a mark's detail is not as documented.
    """
    batches = fetches(marks)
    idle = states.filter((pl.col("activity") == "idle") & (pl.col("phase") == "working"))
    if not batches.height or not idle.height or not steps.height:
        return HOST_TIMES.empty()
    try:
        known = [msgspec.json.decode(detail or "", type=_Loader) for detail in batches["detail"]]
    except msgspec.MsgspecError as error:
        raise RecordError(f"a {LOADER_EXIT!r} mark has no readable detail: {error}", where="table 'marks'") from error
    spans = intervals(idle["start_ns"].to_numpy(), idle["end_ns"].to_numpy())
    begin, end = batches["start_ns"].to_numpy(), batches["end_ns"].to_numpy()
    steps = steps.sort("start_ns")
    row = np.searchsorted(steps["start_ns"].to_numpy(), end, side="right") - 1
    inside = (row >= 0) & (end <= steps["end_ns"].to_numpy()[np.maximum(row, 0)])
    found = pl.DataFrame({
        "step": steps["step"].gather(pl.Series(np.maximum(row, 0))), "what": [k.what for k in known],
        "stack_id": pl.Series([k.stack_id for k in known], dtype=I64),
        "duration_ns": before(spans, end) - before(spans, begin),
    }).filter(pl.Series(inside))  # fmt: skip
    sums = found.filter(pl.col("duration_ns") > 0).group_by("step", "what", "stack_id", maintain_order=True).agg(
        pl.len().alias("count"), pl.col("duration_ns").sum()
    )  # fmt: skip
    return sums.with_columns(kind=pl.lit("loader")).select(*HOST_TIMES.schema).cast(pl.Schema(HOST_TIMES.schema))


def fetches(marks: pl.DataFrame) -> pl.DataFrame:
    """Each batch that the host fetched: start_ns, end_ns and the mark's detail."""
    edges = marks.filter(pl.col("name").is_in([LOADER_ENTER, LOADER_EXIT])).sort("t_ns", maintain_order=True)
    entered = pl.col("name").shift(1) == LOADER_ENTER
    found = edges.select("name", "detail", start_ns=pl.col("t_ns").shift(1), end_ns="t_ns", entered=entered)
    return found.filter((pl.col("name") == LOADER_EXIT) & pl.col("entered")).select("start_ns", "end_ns", "detail")
