"""A step's kernel trace, put on the rank's clock and to its operators; times by hand, in µs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import torch

from magneton_dist.importers.captured import with_kernels
from magneton_dist.importers.device import read_device
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
        ("GPU-1", 7, "kernel", "gemm", 100 * US, 150 * US, 4, None, None),
        ("GPU-1", 7, "memcpy", "Memcpy DtoD", 160 * US, 165 * US, 5, None, None),
        ("GPU-1", 20, "collective", NCCL, 170 * US, 210 * US, None, None, None),  # launched after all operators
        ("GPU-1", 7, "kernel", "of a graph", 220 * US, 230 * US, None, None, None),  # its launch is not in the trace
    ]
    window = made["marks"].filter(pl.col("name") == "kernels")
    assert window["t_ns"].to_list() == [500 * US]
    assert json.loads(window["detail"][0]) == {"start_ns": 0, "activities": 4}
    assert made["faults"]["message"].to_list() == [
        "step 7: 2 of 4 activities met their operators by when they were launched, for want of external ids"
    ]


def test_kernels_meet_their_operators_by_external_ids_whenever_they_were_launched(write: Any, make: Any) -> None:
    """Two threads call operators at once: 5 from 28 us on, 6 from 29 us on; each launches amid both."""
    def operator(called: int, start: int, dur: int, tid: int, external: int) -> dict[str, Any]:
        name = f"magneton_dist.operator#{called * US}"
        return make.host(name, start, dur, tid=tid, **{"External id": external})

    def ran(start: int, correlation: int, external: int | None, **args: Any) -> dict[str, Any]:
        known = {} if external is None else {"External id": external}
        return make.kernel("gemm", start, 5, correlation, **known, **args)

    blocks, node = "blocks per SM", "graph node id"
    path = write(
        [
            operator(28, 30, 40, 1, 11), operator(29, 31, 40, 2, 12),
            make.host("aten::mm", 32, 20, tid=1, **{"External id": 13}),
            make.launch(1, 35, tid=1), make.launch(2, 36, tid=2), make.launch(3, 37, tid=1), make.launch(4, 38, tid=3),
            ran(100, 1, 13, **{blocks: 0.18, node: 0}),  # by aten::mm, within the first
            ran(110, 2, 12, **{blocks: 3.5, node: 8589934592}),  # by the second itself, through a graph
            ran(120, 3, 99, **{blocks: "inf"}),  # by what the trace does not hold
            ran(130, 4, None),
        ],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    ops = [(5, 28, 80), (6, 29, 90)]
    made, _ = with_kernels(tables(mark(path.name) | {"operators": True}, ops=ops), path.parent, "GPU-1")
    assert made["activities"].select("op_id", "graph_node", "sm_share").rows() == [
        (5, None, 0.18), (6, 8589934592, 1.0), (None, None, None), (None, None, None),
    ]  # fmt: skip
    assert made["faults"].is_empty()
    guessed, _ = with_kernels(tables(mark(path.name), ops=ops), path.parent, "GPU-1")
    assert guessed["activities"]["op_id"].to_list() == [6, 6, 6, 6]  # the time of the launch tells no threads apart
    assert "4 of 4 activities" in guessed["faults"]["message"][0]


def test_all_that_a_graph_holds_belongs_to_the_operator_that_launched_it(write: Any, make: Any) -> None:
    """One launch, and so one correlation, for every node; the second replay is nobody's."""
    def node(number: int, start: int, correlation: int, **args: Any) -> dict[str, Any]:
        return make.kernel(f"node {number}", start, 5, correlation, **{"graph node id": number}, **args)

    graph = "cudaGraphLaunch"
    path = write(
        [
            make.host(f"magneton_dist.operator#{28 * US}", 30, 40, **{"External id": 11}),
            make.host(graph, 35, 10, "cuda_runtime", correlation=2),
            make.host(graph, 75, 10, "cuda_runtime", correlation=3),
            *(node(n, 100 + 10 * n, 2, **{"External id": 11}) for n in (1, 2)),
            node(3, 130, 2, cat="gpu_memcpy", **{"External id": 11}),
            *(node(n, 200 + 10 * n, 3) for n in (1, 2)),
        ],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    issued = read_device(path).rows["issue_ns"] - AHEAD_NS
    assert issued.to_list() == [35 * US, 35 * US, 35 * US, 75 * US, 75 * US]
    for announced in (True, False):  # to the profiler; else the time of the launch decides
        known = tables(mark(path.name) | {"operators": announced}, ops=[(5, 28, 70)])
        made, _ = with_kernels(known, path.parent, "GPU-1")
        assert made["activities"].select("kind", "op_id", "graph_node").rows() == [
            ("kernel", 5, 1), ("kernel", 5, 2), ("memcpy", 5, 3), ("kernel", None, 1), ("kernel", None, 2),
        ]  # fmt: skip


def test_our_own_traces_say_themselves_when_the_operator_was_called(write: Any, make: Any) -> None:
    events = [make.kernel("gemm", 100, 5, 1, operator=28 * US), make.kernel("gemm", 110, 5, 2)]
    path = write([make.launch(1, 90), make.launch(2, 91), *events], baseTimeNanoseconds=AHEAD_NS)
    made, _ = with_kernels(tables(mark(path.name) | {"operators": True}, ops=[(5, 28, 95)]), path.parent, "GPU-1")
    assert made["activities"]["op_id"].to_list() == [5, None]


def test_what_torch_calls_around_an_operator_is_found_in_its_own_trace(tmp_path: Path) -> None:
    """Host side by the real profiler; a kernel with the external id that it gave to aten::mm is added by hand."""
    called_ns = 123_456_789_012_345
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with torch._C._profiler._RecordFunctionFast(f"magneton_dist.operator#{called_ns}"):
            torch.ones(4, 4) @ torch.ones(4, 4)
        torch.ones(4, 4) + 1
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    ids = {e["name"]: e["args"]["External id"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"}
    last = max(e["ts"] for e in trace["traceEvents"] if "ts" in e)
    for n, name in enumerate(("aten::mm", "aten::add")):
        kernel = {"device": 0, "stream": 7, "correlation": 900_000 + n, "External id": ids[name]}
        trace["traceEvents"].append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": last + n, "dur": 0.5, "args": kernel}
        )
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    seen = read_device(tmp_path / "trace.json")
    assert seen.rows.select("name", "called_ns").rows() == [("aten::mm", called_ns), ("aten::add", None)]


waited = pl.col("kind").is_in(["sync", "spin"])


def test_why_the_device_idled_in_a_captured_step(write: Any, make: Any) -> None:
    """As of a trace. Idle: 0-20 (launched at 12, loading from 2 to 8), 30-70 (launched at 25), 80-90 (unknown)."""
    path = write(
        [
            make.launch(1, 12), make.kernel("a", 20, 10, 1), make.launch(2, 25), make.kernel("b", 70, 10, 2),
            make.kernel("c", 90, 10, 99),
        ],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    recorded = tables(mark(path.name), ops=[(4, 10, 15), (5, 24, 27)])
    recorded["ops"] = recorded["ops"].with_columns(pl.Series("stack_id", [8, 9], pl.Int64))
    loaded = [("loader_enter", 2 * US, None), ("loader_exit", 8 * US, json.dumps({"what": "loader", "stack_id": 3}))]
    marks = pl.DataFrame(loaded, schema=TABLES["marks"].schema, orient="row")
    recorded["marks"] = pl.concat([recorded["marks"], marks])
    _, host_times = with_kernels(recorded, path.parent, "GPU-1")
    assert host_times.select("step", "kind", "what", "stack_id", "count", "duration_ns").rows() == [
        (7, "launch", "aten.mm.default", 9, 1, 40 * US),
        (7, "unknown", "", None, 1, 10 * US),
        (7, "launch", "aten.mm.default", 8, 1, 8 * US),
        (7, "host", "aten.mm.default", 8, 1, 6 * US),  # until 12 but for 6 of the loader, which the marks tell
    ]


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
    kept = host_times.filter(waited).select("step", "kind", "what", "count", "duration_ns").rows()
    assert kept == [(7, "sync", "", 2, 250 * US), (7, "spin", "", 2, 150 * US)]


def test_which_operators_the_main_thread_waited_in(write: Any, make: Any) -> None:
    def waiting(start: int, took: int) -> dict[str, Any]:
        return make.host("cudaStreamSynchronize", start, took, "cuda_runtime", tid=100, correlation=0)

    def operator(name: str, start: int, took: int) -> dict[str, Any]:
        return make.host(name, start, took, tid=100)

    path = write(
        [
            make.kernel("gemm", 10, 300, 1),
            operator(f"magneton_dist.operator#{28 * US}", 30, 200), operator("aten::item", 40, 180),
            operator("aten::_local_scalar_dense", 50, 150), waiting(60, 100), waiting(170, 20),
            operator(f"magneton_dist.operator#{250 * US}", 250, 50), waiting(260, 10),  # not within torch's own
            operator("aten::to", 310, 60), waiting(320, 40),  # of what the recorder did not announce
            waiting(400, 30),  # torch.cuda.synchronize()
        ],
        baseTimeNanoseconds=AHEAD_NS,
    )  # fmt: skip
    recorded = tables(mark(path.name) | {"operators": True}, ops=[(5, 28, 240), (6, 250, 305)])
    recorded["ops"] = recorded["ops"].with_columns(pl.Series("stack_id", [4, 9], pl.Int64))
    _, host_times = with_kernels(recorded, path.parent, "GPU-1")
    assert host_times.filter(waited).select("kind", "what", "stack_id", "count", "duration_ns").rows() == [
        ("sync", "aten::_local_scalar_dense", 4, 2, 120 * US),
        ("sync", "aten::to", None, 1, 40 * US),
        ("sync", "", None, 1, 30 * US),
        ("sync", "", 9, 1, 10 * US),
    ]


def test_what_the_profiler_lost_leaves_the_window_incomplete(write: Any, make: Any) -> None:
    damaged = make.kernel("gemm", 100, 50, 1)
    damaged["ts"] = "soon"
    path = write([make.kernel("gemm", 200, 50, 1), damaged], baseTimeNanoseconds=AHEAD_NS)
    made, host_times = with_kernels(tables(mark(path.name)), path.parent, "GPU-1")
    (detail,) = made["marks"].filter(pl.col("name") == "kernels")["detail"]
    assert json.loads(detail)["activities"] == made["activities"].height + 1
    assert host_times.is_empty()  # nothing proves that the device idled before the other
    said = "step 7: 1 activities cannot be read or were dropped: why the device idled is not told"
    assert made["faults"]["message"].to_list() == [said]


def test_a_kernel_that_cannot_have_lasted_so_long_is_named(write: Any, make: Any) -> None:
    path = write([make.kernel("gemm", 100, 5e6, 1), make.kernel("gemm", 200, 50, 2)], baseTimeNanoseconds=AHEAD_NS)
    made, _ = with_kernels(tables(mark(path.name)), path.parent, "GPU-1")
    assert (made["activities"]["end_ns"] - made["activities"]["start_ns"]).to_list() == [100_000, 50_000]
    (said,) = made["faults"]["message"]
    assert said.startswith("step 7: 1 event(s) on the device last beyond the end of a later one of their stream")


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
