"""A step's kernel trace, put on the rank's clock and to its operators; times by hand, in µs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import torch

from magneton_dist.importers.captured import with_kernels
from magneton_dist.importers.kineto import read_device
from magneton_dist.records.schema import TABLES

US = 1_000
AHEAD_NS = 5_000_000_000_000  # wall clock less monotonic clock
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def tables(*marks: dict[str, Any], ops: list[tuple[int, int, int]] = []) -> dict[str, pl.DataFrame]:  # noqa: B006
    """Marks end at 500 µs; operators as (op_id, start, end)."""
    found = {name: table.empty() for name, table in TABLES.items()}
    rows = [{"name": "kernel_trace", "t_ns": 500 * US, "detail": json.dumps(m)} for m in marks]
    if rows:
        found["marks"] = pl.DataFrame(rows, schema=TABLES["marks"].schema)
    known = dict.fromkeys(TABLES["ops"].columns) | {"step": 7, "name": "aten.mm.default", "inputs": [], "outputs": []}
    calls = [known | {"op_id": i, "start_ns": a * US, "end_ns": b * US} for i, a, b in ops]
    found["ops"] = pl.DataFrame(calls, schema=TABLES["ops"].schema)
    return found


def mark(file: str, start: int = 0) -> dict[str, Any]:
    return {"file": file, "step": 7, "start_ns": start * US, "wall_ahead_ns": AHEAD_NS}


def test_kernels_come_onto_the_ranks_clock_and_to_the_operator_that_launched_them(write: Any, make: Any) -> None:
    path = write(
        [
            make.launch(1, 10), make.launch(2, 30), make.launch(3, 60),
            make.kernel("gemm", 100, 50, 1), make.kernel("Memcpy DtoD", 160, 5, 2, cat="gpu_memcpy"),
            make.kernel(NCCL, 170, 40, 3, stream=20), make.kernel("of a graph", 220, 10, 99),
        ],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    made, _ = with_kernels(tables(mark(path.name), ops=[(4, 5, 12), (5, 28, 40), (6, 41, 55)]), path.parent, "GPU-1")
    assert made["activities"].rows() == [
        ("GPU-1", 7, "kernel", "gemm", 100 * US, 150 * US, 4),
        ("GPU-1", 7, "memcpy", "Memcpy DtoD", 160 * US, 165 * US, 5),
        ("GPU-1", 20, "collective", NCCL, 170 * US, 210 * US, None),  # launched after all operators
        ("GPU-1", 7, "kernel", "of a graph", 220 * US, 230 * US, None),  # its launch is not in the trace
    ]
    window = made["marks"].filter(pl.col("name") == "kernels")
    assert window["t_ns"].to_list() == [500 * US]
    assert json.loads(window["detail"][0]) == {"start_ns": 0, "activities": 4}
    assert made["faults"].is_empty()


def test_how_long_the_main_thread_waited_and_what_cpu_time_it_took(write: Any, make: Any) -> None:
    def waiting(start: int, took: int, tid: int) -> dict[str, Any]:
        call = make.host("cudaStreamSynchronize", start, took, "cuda_runtime", correlation=0)
        return call | {"pid": 77, "tid": tid}

    path = write(
        [make.kernel("gemm", 100, 300, 1), waiting(110, 200, 77), waiting(320, 50, 77), waiting(0, 400, 78)],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    recorded = tables(mark(path.name))
    # of 500 us the thread was on its core for 400, of which it can have spent 250 outside of its 250 of waits
    rows = [(0, 0, 0), (500 * US, 400 * US, 0)]
    recorded["stamps"] = pl.DataFrame(rows, schema=TABLES["stamps"].schema, orient="row")
    _, host_times = with_kernels(recorded, path.parent, "GPU-1")
    kept = host_times.select("step", "kind", "what", "count", "duration_ns").rows()
    assert kept == [(7, "sync", "", 2, 250 * US), (7, "spin", "", 2, 150 * US)]


def test_what_the_profiler_lost_leaves_the_window_incomplete(write: Any, make: Any) -> None:
    damaged = make.kernel("gemm", 100, 50, 1)
    damaged["ts"] = "soon"
    path = write([make.kernel("gemm", 200, 50, 1), damaged], baseTimeNanoseconds=AHEAD_NS)
    made, _ = with_kernels(tables(mark(path.name)), path.parent, "GPU-1")
    (detail,) = made["marks"].filter(pl.col("name") == "kernels")["detail"]
    assert json.loads(detail)["activities"] == made["activities"].height + 1
    assert made["faults"]["message"].to_list() == ["step 7: 1 activities cannot be read or were dropped"]


def test_traces_that_cannot_be_read_are_named_and_the_rest_is_kept(write: Any, make: Any, tmp_path: Path) -> None:
    path = write([make.kernel("gemm", 100, 50, 1)], baseTimeNanoseconds=AHEAD_NS)
    (tmp_path / "torn.json").write_text('{"traceEvents": [{"ph"')
    write([make.launch(1, 10)], name="blind.json")  # another profiler held CUPTI
    files = ("blind.json", "gone.json", "../rank-0.json", "torn.json", path.name)
    made, _ = with_kernels(tables({"file": 3}, *map(mark, files)), tmp_path, "GPU-1")
    assert made["activities"].height == 1
    assert made["faults"].height == 5
    assert made["marks"].filter(pl.col("name") == "kernels").height == 1
    assert made["faults"]["where"].unique().to_list() == ["kernels"]


def test_without_traces_nothing_changes() -> None:
    before = tables()
    after, host_times = with_kernels(before, Path("nowhere"), "GPU-1")
    assert after == before
    assert host_times.is_empty()


def test_what_torch_really_exports_can_be_read(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    profiler.export_chrome_trace(str(tmp_path / "kernels.json"))
    seen = read_device(tmp_path / "kernels.json")
    assert (seen.rows.height, seen.lost) == (0, 0)
