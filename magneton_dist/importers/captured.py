"""The kernels of single steps of a traced job, from the profiler's traces that the tracer left beside its segments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.importers.device import DeviceActivities, outlasting_words, read_device
from magneton_dist.importers.host_times import idle_times
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.records.schema import ACTIVITIES, FAULTS, I64, MARKS, STR
from magneton_dist.timeline.loading import fetches
from magneton_dist.timeline.spinning import spun

TRACE_MARK, WINDOW_MARK = "kernel_trace", "kernels"


class _Trace(msgspec.Struct, frozen=True):
    """Detail of a `kernel_trace` mark."""

    file: str
    step: int
    start_ns: int
    wall_ahead_ns: int
    operators: bool = False  # each operator of the step was announced: what has none was launched by none


def with_kernels(
    tables: Mapping[str, pl.DataFrame], segments: Path, device: str
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
    """`tables` of a rank with the activities, and the marks of captured windows, of its kernel traces.

    Beside them `HOST_TIMES` of those steps: why the device idled (but for the loader's part, which
    `timeline.loading` knows), how long the main thread stood waiting for it, and how much CPU time that certainly took.

    A trace that cannot be read, or holds nothing of the device, is named in `faults`, and its step has no kernels.

    Args:
        tables: as assembled from the spool.
        segments: folder of the spool's segments, where the traces lie.
        device: UUID of the rank's GPU.
    """
    found, marks, faults = [tables["activities"]], [tables["marks"]], [tables["faults"]]
    host_times = [HOST_TIMES.empty()]
    for t_ns, text in tables["marks"].filter(pl.col("name") == TRACE_MARK).select("t_ns", "detail").iter_rows():
        try:
            known = msgspec.json.decode(text or "", type=_Trace)
            if Path(known.file).name != known.file:
                raise RecordError("is no name of a file beside the segments", where=known.file)
            seen = read_device(segments / known.file)
            if seen.rows.is_empty():  # a step that used no device at all is less likely
                do = "is another profiler attached to the job?"
                raise RecordError("holds nothing of the device", where=known.file, do=do)
        except (msgspec.MsgspecError, RecordError) as error:
            faults.append(_fault(str(error)))
            continue
        activities, guessed = _activities(seen, known, device, tables["ops"])
        found.append(activities)
        if guessed:
            how = "by when they were launched, for want of external ids"
            said = f"step {known.step}: {guessed} of {activities.height} activities met their operators {how}"
            faults.append(_fault(said))
        host_times.append(_waits(seen.waits, known, tables["ops"], tables["stamps"]))
        if not seen.lost:  # else nothing proves that the device idled
            host_times.append(_idled(seen.rows["issue_ns"], activities, known, t_ns, tables))
        if seen.outlasting:
            said = f"step {known.step}: {outlasting_words(seen.outlasting)}"
            faults.append(_fault(said))
        # what began between the mark's ends and was reported; lost ones make the window incomplete
        inside = activities["start_ns"].is_between(known.start_ns, t_ns, closed="left").sum() + seen.lost
        detail = json.dumps({"start_ns": known.start_ns, "activities": int(inside)})
        marks.append(pl.DataFrame({"name": [WINDOW_MARK], "t_ns": [t_ns], "detail": [detail]}, schema=MARKS.schema))
        if seen.lost:
            said = f"{seen.lost} activities cannot be read or were dropped: why the device idled is not told"
            faults.append(_fault(f"step {known.step}: {said}"))
    if len(found) == 1 and len(faults) == 1:
        return dict(tables), pl.concat(host_times)
    made = {
        **tables, "activities": pl.concat(found).sort("start_ns", maintain_order=True),
        "marks": pl.concat(marks).sort("t_ns", maintain_order=True), "faults": pl.concat(faults),
    }  # fmt: skip
    return made, pl.concat(host_times)


def _fault(message: str) -> pl.DataFrame:
    return pl.DataFrame({"where": ["kernels"], "message": [message]}, schema=FAULTS.schema)


def _idled(
    issue_ns: pl.Series, activities: pl.DataFrame, known: _Trace, until_ns: int, tables: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Rows of `HOST_TIMES` of one step: by operator how long the device idled for the host or after the launch."""
    device = activities.select("start_ns", "end_ns", issue_ns - known.wall_ahead_ns)
    step = pl.DataFrame({"start_ns": [known.start_ns]})
    rows = pl.concat(idle_times(device, activities["op_id"].fill_null(-1).to_numpy(), fetches(tables["marks"]), step))
    called = tables["ops"].select("stack_id", pl.col("name").alias("what"), pl.col("op_id").alias("op"))
    rows = rows.filter((pl.col("kind") != "loader") & (pl.col("at") < until_ns)).join(
        called.unique("op", keep="first"), on="op", how="left"
    )
    sums = rows.group_by("kind", pl.col("what").fill_null(""), "stack_id").agg(
        pl.len().alias("count"), pl.col("duration_ns").sum()
    )
    sums = sums.sort("duration_ns", "kind", "what", "stack_id", descending=[True, False, False, False])
    return sums.with_columns(step=pl.lit(known.step)).select(*HOST_TIMES.schema).cast(pl.Schema(HOST_TIMES.schema))


def _waits(waits: pl.DataFrame, known: _Trace, ops: pl.DataFrame, stamps: pl.DataFrame) -> pl.DataFrame:
    """Rows of `HOST_TIMES` of one step: by operator how long its main thread waited, and the CPU time of all that."""
    if not waits.height:
        return HOST_TIMES.empty()
    called = ops.select("stack_id", called_ns="start_ns").drop_nulls("called_ns").unique("called_ns", keep="none")
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    by_operator = waits.join(called, on="called_ns", how="left").with_columns(length).group_by("what", "stack_id").agg(
        pl.len().alias("count"), pl.col("duration_ns").sum()
    )  # fmt: skip
    rows = [by_operator.sort("duration_ns", "what", descending=[True, False]).with_columns(kind=pl.lit("sync"))]
    burnt = spun(stamps, (waits.select("start_ns", "end_ns") - known.wall_ahead_ns).to_numpy())
    if burnt is not None:
        rows.append(pl.DataFrame({"what": "", "stack_id": None, "count": waits.height, "duration_ns": burnt,
                                  "kind": "spin"}))  # fmt: skip
    return pl.concat(
        part.with_columns(step=pl.lit(known.step)).select(*HOST_TIMES.schema).cast(pl.Schema(HOST_TIMES.schema))
        for part in rows
    )


def _activities(
    seen: DeviceActivities, known: _Trace, device: str, ops: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """`ACTIVITIES` on the rank's clock, each with the traced operator that launched it.

    By its external id, which says when that operator was called; where operators were not announced to the profiler,
    the one that was being called when it was launched. Of so many is the other result.
    """
    rows, ahead_ns = seen.rows, known.wall_ahead_ns
    if known.operators:
        called = ops.select("op_id", called_ns="start_ns").drop_nulls().unique("called_ns", keep="none")
        op_id = rows.select("called_ns").join(called, on="called_ns", how="left", maintain_order="left")["op_id"]
        guessed = 0
    else:
        launched_ns = (rows["issue_ns"] - ahead_ns).to_numpy()
        op_id = pl.Series("op_id", _launchers(ops, launched_ns), I64)
        guessed = len(op_id) - op_id.null_count()
    activities = rows.select(
        pl.lit(device, STR).alias("device"), "stream", "kind", "name", pl.col("start_ns") - ahead_ns,
        pl.col("end_ns") - ahead_ns, op_id, "graph_node", "sm_share",
    ).select(*ACTIVITIES.columns)  # fmt: skip
    return activities, guessed


def _launchers(ops: pl.DataFrame, launched_ns: np.ndarray) -> list[int | None]:
    """The operator that was being called at each moment; None where none was (NaN: launch not seen)."""
    timed = ops.drop_nulls(["start_ns", "end_ns"]).sort("start_ns")
    if timed.is_empty() or not len(launched_ns):
        return [None] * len(launched_ns)
    start, end, ids = (timed[name].to_numpy() for name in ("start_ns", "end_ns", "op_id"))
    at = np.nan_to_num(launched_ns.astype(np.float64), nan=-1.0)
    row = np.searchsorted(start, at, side="right") - 1
    inside = (row >= 0) & (at <= end[np.maximum(row, 0)])
    return [int(ids[r]) if held else None for r, held in zip(row.tolist(), inside.tolist(), strict=True)]
