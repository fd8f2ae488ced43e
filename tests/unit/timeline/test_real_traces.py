"""The join on traces of real GPUs that others recorded (traces/PROVENANCE.md)."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from magneton_dist.records.manifest import Clock
from magneton_dist.records.schema import COLLECTIVES
from magneton_dist.timeline.arrivals import Joined, join_arrivals, own_arrivals

OPS = {"SendRecv": "alltoall_base_", "AllReduce": "allreduce_"}


class Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0
    dur: float = 0


class Trace(msgspec.Struct):
    traceEvents: list[Event]


def nccl(path: Path, group_size: int) -> pl.DataFrame:
    """The NCCL kernels of one rank as a collectives table: no group, no sequence, no sizes."""
    trace = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Trace)
    kernels = [e for e in trace.traceEvents if e.cat == "kernel" and "nccl" in e.name]
    kernels.sort(key=lambda e: e.ts)
    rows: list[dict[str, Any]] = [
        {
            "call_id": n, "group": None, "group_size": group_size,
            "op": next(op for kind, op in OPS.items() if kind in e.name),
            "issue_ns": round(e.ts) * 1000, "start_ns": round(e.ts) * 1000,
            "end_ns": round(e.ts + e.dur) * 1000,
        }
        for n, e in enumerate(kernels)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=COLLECTIVES.schema)


def join(folder: Path, ranks: int, group_size: int) -> tuple[list[pl.DataFrame], Joined]:
    tables = [nccl(folder / f"rank-{r}.json.gz", group_size) for r in range(ranks)]
    clocks = {r: Clock(0, 0) for r in range(ranks)}
    return tables, join_arrivals([own_arrivals(t, r) for r, t in enumerate(tables)], clocks)


def test_waits_of_all_64_collectives_of_8_v100s(traces: Path) -> None:
    tables, joined = join(traces / "param-dlrm-8xV100", 8, 8)
    assert set(joined.arrivals["method"]) == {"durations"}
    assert len(joined.arrivals) == 64
    starts = [[row[n] for row in (t["start_ns"] for t in tables)] for n in range(8)]
    for n in range(8):
        for r in range(8):
            wait = joined.of(r)["wait_ns"][n]
            assert abs(wait - (max(starts[n]) - starts[n][r])) <= 7_000  # ends agree within 7 us


def test_last_arrivers_and_first_collective_as_in_provenance(traces: Path) -> None:
    _, joined = join(traces / "param-dlrm-8xV100", 8, 8)
    last = [joined.arrivals.filter(pl.col("call_id") == n)["last_rank"].unique().to_list() for n in range(8)]
    assert last == [[7], [7], [7], [7], [7], [5], [5], [4]]
    durations_us = [2146, 7635, 518, 6132, 4882, 4679, 514, 10]  # of collective 0; rank 7 came last
    first = joined.arrivals.filter(pl.col("call_id") == 0)
    assert [w // 1000 for w in first["wait_ns"]] == [d - 10 for d in durations_us]
    assert first["culprit"].to_list() == [7, 7, 7, 7, 7, 7, 7, None]


def test_two_of_128_ranks_have_no_wait(traces: Path) -> None:
    _, joined = join(traces / "hta-sampled-2of128", 2, 128)
    assert joined.arrivals["wait_ns"].null_count() == 20
    assert set(joined.arrivals["reason"]) == {"only 2 of 128 ranks recorded the call"}


def test_ordinals_that_do_not_align_are_refused(traces: Path) -> None:
    # The same two ranks, taken for a whole group: their ends differ by -68 to +134 ms.
    _, joined = join(traces / "hta-sampled-2of128", 2, 2)
    assert joined.arrivals["wait_ns"].null_count() == 20
    assert "do not line up" in joined.groups["reason"][0]
