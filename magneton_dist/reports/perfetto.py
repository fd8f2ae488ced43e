"""One run as a Chrome/Perfetto trace: a process per rank, tracks of states, steps, collectives and operators.

Trace event format (JSON, gzip), times in µs since the start of the run's window. Slices of one track never
overlap, which is what Perfetto needs to show them: what runs at once gets a further track. Arrows lead from
the collective of the rank that arrived last to those of the ranks it kept waiting.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.reports.audit_json import write_atomically
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.figures import one_line
from magneton_dist.reports.palette import shown_state

MAX_ARROWS = 20_000
_TRACKS = {"states": 1, "steps": 2, "collectives": 1_000, "operators": 5_000}  # first track of each kind
_THREADS_PER_RANK = 10_000
# columns of the monitors, and how they are shown
_PARTS = (
    ("sm", "SMs with work", "%", 0.01), ("tensor", "tensor cores", "%", 0.01), ("dram", "DRAM bandwidth", "%", 0.01),
    ("nvlink_bytes_s", "NVLink", "GB/s", 1e9),
)  # fmt: skip


def write_perfetto(run: RunBands, path: Path) -> None:
    """Write `run` to `path`, atomically; open it in ui.perfetto.dev or chrome://tracing. JSON if it is called
    ``.json``, else gzip of it.

    The trace's `otherData` says what is left out: arrows of waits (the shortest beyond `MAX_ARROWS`, and
    those whose two calls do not overlap on these clocks) and power readings that failed.
    """
    names: list[dict[str, object]] = []
    events: list[pl.DataFrame] = []
    calls: list[pl.DataFrame] = []
    failed = 0
    for rank, bands in sorted(run.ranks.items()):
        pid = rank + 1  # Perfetto keeps process 0 for the kernel's idle task
        node = f" on {one_line(bands.node, 60)}" if bands.node else ""
        names += _process(pid, f"rank {rank}{node}")
        for kind, slices in _slices(bands, run):
            placed = _place(slices, pid, _TRACKS[kind])
            names += _threads(placed, pid, kind)
            events.append(_encode(placed, "X"))
            if kind == "collectives":
                calls.append(placed)
        for counter in (*_power(bands, run, pid), *_monitors(bands, run, pid)):
            events.append(_encode(counter, "C"))
        failed += bands.power["watts"].null_count()
    left_out = 0
    if calls:
        starts, ends, left_out = _arrows(run, calls)
        events += [_encode(starts, "s"), _encode(ends, "f")]
    rows = pl.concat(events).sort("ts", maintain_order=True)["json"].to_list() if events else []
    note = {
        "variant": one_line(run.variant), "repeat": run.repeat, "power_is": run.energy_kind,
        "arrows_left_out": left_out, "power_readings_failed": failed,
    }
    lines = ",\n".join([*map(json.dumps, names), *rows])
    document = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(note)},"traceEvents":[\n{lines}\n]}}\n'
    data = document.encode()
    write_atomically(path, data if path.suffix == ".json" else gzip.compress(data, compresslevel=6, mtime=0))


def _slices(bands: RankBands, run: RunBands) -> Iterator[tuple[str, pl.DataFrame]]:
    """Kind and slices (ts, dur in ns since the window's start; name; args) of everything with a duration."""
    states = bands.states.select("phase", "activity").unique()
    looks = states.with_columns(
        name=pl.Series([shown_state(*row) for row in states.iter_rows()], dtype=pl.String)
    )
    named = bands.states.join(looks, on=["phase", "activity"])
    yield "states", _timed(named, run, pl.col("name"), "phase", "activity")
    yield "steps", _timed(bands.steps, run, pl.format("step {}", "step"), "kind", "units", "unit")
    calls = bands.collectives.with_columns(
        start_ns=pl.coalesce("start_ns", "issue_ns"), in_flight=pl.col("end_ns").is_null()
    )
    name = pl.format("{} ({})", "op", pl.col("origin").fill_null("unknown"))
    args = ("call_id", "group", "seq", "origin", "bytes", "dtype", "zero_payload", "step", "root")
    yield "collectives", _timed(calls, run, name, *args, "in_flight")
    yield "operators", _timed(bands.ops, run, pl.col("name"), "phase", "step", "op_id")


def _timed(table: pl.DataFrame, run: RunBands, name: pl.Expr, *args: str) -> pl.DataFrame:
    """Rows of `table` that touch the window, as slices; what has not ended lasts until the window's end."""
    end = pl.col("end_ns").fill_null(run.end_ns)
    return (
        table.filter((end >= run.start_ns) & (pl.col("start_ns") <= run.end_ns) & (end >= pl.col("start_ns")))
        .select(
            ts=pl.col("start_ns") - run.start_ns, dur=end - pl.col("start_ns"), name=name.fill_null("?"),
            args=pl.struct(args),
        )
        .sort("ts")
    )


def _place(slices: pl.DataFrame, pid: int, first: int) -> pl.DataFrame:
    """Give every slice its process and a track on which it overlaps no other."""
    start = slices["ts"].to_numpy()
    track = lanes(start, start + slices["dur"].to_numpy())
    base = pid * _THREADS_PER_RANK + first
    return slices.with_columns(pid=pl.lit(pid, pl.Int64), tid=pl.Series(track + base, dtype=pl.Int64))


def lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest lane of each interval that is free at its start; `start` is sorted."""
    lane = np.zeros(len(start), dtype=np.int64)
    if len(start) < 2 or bool(np.all(start[1:] >= np.maximum.accumulate(end)[:-1])):
        return lane
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, used)
            used += 1
        lane[index] = heapq.heappop(free)
        heapq.heappush(busy, (finish, int(lane[index])))
    return lane


def _power(bands: RankBands, run: RunBands, pid: int) -> Iterator[pl.DataFrame]:
    """Counter events per device: a reading speaks for the time before it, a counter for the time after."""
    by_sensor = bands.power.sort("t_ns").group_by("device", "sensor", maintain_order=True)
    for (device, sensor), readings in by_sensor:
        how = ", ".join(dict.fromkeys((one_line(str(sensor), 30), run.energy_kind)))
        name = f"power of {one_line(str(device), 60)} ({how})"
        since = pl.col("t_ns").shift(1).fill_null(pl.col("t_ns") - pl.col("window_ns").fill_null(0))
        yield readings.with_columns(since=since).drop_nulls("watts").select(
            ts=pl.col("since") - run.start_ns, pid=pl.lit(pid, pl.Int64),
            tid=pl.lit(pid * _THREADS_PER_RANK, pl.Int64), name=pl.lit(name), args=pl.struct(W="watts"),
        )


def _monitors(bands: RankBands, run: RunBands, pid: int) -> Iterator[pl.DataFrame]:
    """Counter events of what performance monitors say of the device's parts, each for the time between two looks."""
    for column, part, unit, scale in _PARTS:
        told = bands.monitors.drop_nulls(column)
        if told.height:
            yield told.select(
                ts=pl.col("start_ns") - run.start_ns, pid=pl.lit(pid, pl.Int64),
                tid=pl.lit(pid * _THREADS_PER_RANK, pl.Int64), name=pl.lit(f"{part} of {one_line(bands.device, 60)}"),
                args=pl.struct((pl.col(column) / scale).alias(unit)),
            )  # fmt: skip


def _arrows(run: RunBands, calls: list[pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Starts and ends of the arrows of the longest `MAX_ARROWS` waits, and how many waits have none."""
    joined = pl.concat([bands.arrivals for bands in run.ranks.values()]).filter(pl.col("key").is_not_null())
    placed = pl.concat(calls).select(
        "pid", "tid", "ts", end=pl.col("ts") + pl.col("dur"), call_id=pl.col("args").struct.field("call_id"),
        rank=(pl.col("pid") - 1).cast(pl.Int32),
    )
    joined = joined.select("rank", "call_id", "key", "culprit", "wait_ns")
    arrived = joined.join(placed, on=["rank", "call_id"])
    waits = arrived.filter(pl.col("culprit").is_not_null(), pl.col("wait_ns") > 0)
    pairs = waits.join(arrived, left_on=["key", "culprit"], right_on=["key", "rank"], suffix="_of_culprit")
    # the moment of the last arrival, which both slices must contain for the arrow to find them
    moment = pl.max_horizontal("ts", "ts_of_culprit")
    pairs = pairs.filter(moment < pl.min_horizontal("end", "end_of_culprit"))
    longest = pairs.sort("wait_ns", descending=True).head(MAX_ARROWS).with_row_index("id", 1)
    arrow = longest.with_columns(ts=moment, name=pl.lit("kept waiting"), cat=pl.lit("wait"), bp=pl.lit("e"))
    starts = arrow.select("ts", "id", "name", "cat", pid="pid_of_culprit", tid="tid_of_culprit")
    return starts, arrow.select("ts", "id", "name", "cat", "pid", "tid", "bp"), waits.height - longest.height


def _encode(events: pl.DataFrame, phase: str) -> pl.DataFrame:
    """Events as their time and their JSON text, in which times are µs."""
    micro = [pl.col(name) / 1e3 for name in ("ts", "dur") if name in events.columns]
    event = pl.struct(pl.lit(phase).alias("ph"), *micro, pl.exclude("ts", "dur"))
    return events.select("ts", json=event.struct.json_encode())


def _process(pid: int, name: str) -> list[dict[str, object]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
    ]


def _threads(placed: pl.DataFrame, pid: int, kind: str) -> Iterator[dict[str, object]]:
    first = pid * _THREADS_PER_RANK + _TRACKS[kind]
    for tid in placed["tid"].unique().sort().to_list():
        name = kind if tid == first else f"{kind} ({tid - first + 1})"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
