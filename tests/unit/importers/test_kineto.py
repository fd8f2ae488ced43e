"""What one trace becomes, on small traces whose content is counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from magneton_dist.importers.calls import of_rank, operator
from magneton_dist.importers.enclosing import innermost
from magneton_dist.importers.kineto import read_trace
from magneton_dist.records.schema import COLLECTIVES, TABLES
from magneton_dist.records.store import RunRecord
from magneton_dist.traces import audit_traces

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_activities_ops_and_steps(write: Any, make: Any) -> None:
    path = write(
        [
            make.step(3, 0, 100), make.step(4, 100, 50),
            make.host("aten::linear", 10, 20), make.host("aten::mm", 12, 10), make.launch(5, 15),
            make.kernel("gemm", 40, 30.5, 5),
            make.kernel("Memcpy HtoD", 80, 0, 6, cat="gpu_memcpy"), make.kernel("Memset", 90, 5, 7, cat="Memset"),
            make.kernel("late", 160, 20, 8),
            {"ph": "M", "name": "process_name", "pid": 100}, {"ph": "s", "cat": "ac2g", "id": 5, "ts": 15},
        ],
        baseTimeNanoseconds=1_000_000_000, distributedInfo={"rank": 2, "world_size": 4},
        deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
    )  # fmt: skip
    trace = read_trace(path)
    assert (trace.rank, trace.world_size, trace.device, trace.device_name) == (2, 4, "cuda:0", "NVIDIA H200")
    assert trace.tables["activities"].select("kind", "start_ns", "end_ns", "op_id").rows() == [
        ("kernel", 1_000_040_000, 1_000_070_500, 0),
        ("memcpy", 1_000_080_000, 1_000_080_000, None),
        ("memset", 1_000_090_000, 1_000_095_000, None),
        ("kernel", 1_000_160_000, 1_000_180_000, None),
    ]
    assert trace.tables["ops"].select("name", "step").rows() == [("aten::mm", 3)]
    # the device drains 30 us after the host has left the last step
    steps = trace.tables["steps"].select("step", "start_ns", "end_ns").rows()
    assert steps == [(3, 1_000_000_000, 1_000_100_000), (4, 1_000_100_000, 1_000_180_000)]
    for name, table in trace.tables.items():
        TABLES[name].validate(table, name)


def test_times_since_1970_keep_their_nanoseconds(write: Any, make: Any) -> None:
    trace = read_trace(write([make.kernel("k", 1661938466265584, 5), make.kernel("k", 4458676522690.655, 1.001)]))
    spans = trace.tables["activities"].select("start_ns", "end_ns").rows()
    assert spans == [(4458676522690655, 4458676522691656), (1661938466265584000, 1661938466265589000)]


def test_old_capitalised_categories(write: Any, make: Any) -> None:
    runtime = make.host("cudaLaunchKernel", 1, 1, "Runtime", correlation=9)
    events = [runtime, make.host("aten::add", 0, 5, "Operator"), make.kernel("k", 3, 1, 9, cat="Kernel")]
    trace = read_trace(write(events))
    assert trace.tables["activities"]["op_id"].to_list() == [0]
    assert "no ProfilerStep in the trace: its steps are taken to be one" in trace.tables["faults"]["message"]


def test_steps_inferred_from_the_optimizer(write: Any, make: Any) -> None:
    steps = [make.host("Optimizer.step#SGD.step", t, 10, "user_annotation") for t in (90, 190, 290)]
    trace = read_trace(write([make.host("aten::add", 0, 5), *steps, make.kernel("k", 5, 1)]))
    spans = [(a // 1000, b // 1000) for a, b in trace.tables["steps"].select("start_ns", "end_ns").rows()]
    assert spans == [(0, 100), (100, 200), (200, 300)]
    assert not trace.numbered


def test_collectives_with_metadata_on_the_kernel(write: Any, make: Any) -> None:
    meta = {
        "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16", "Group size": 2,
        "Process Group Name": "7", "Process Group Ranks": "[4, 6]", "Global rank start": 4, "Global rank stride": 2,
        "Seq": 11,
    }  # fmt: skip
    trace = read_trace(write([make.step(0, 0, 100), make.launch(1, 10), make.kernel(NCCL, 20, 30, 1, **meta)]))
    calls = COLLECTIVES.validate(of_rank(trace.calls, 6, 8), "calls")
    row = calls.row(0, named=True)
    assert (row["group"], row["group_size"], row["group_rank"], row["seq"]) == ("7@4+2", 2, 1, 11)
    assert (row["op"], row["bytes"], row["dtype"], row["step"]) == ("allreduce_", 2000, "bfloat16", 0)
    assert (row["issue_ns"], row["start_ns"], row["end_ns"]) == (10_000, 20_000, 50_000)


def test_collectives_with_metadata_beside_the_launch(write: Any, make: Any) -> None:
    comms = make.host("record_param_comms", 5, 20, **{
        "External id": 33, "Collective name": "broadcast", "In msg nelems": 8, "dtype": "Long", "Group size": 2,
        "Process Group Name": "0", "Process Group Ranks": [0, 1], "Rank": 1,
    })  # fmt: skip
    trace = read_trace(write([comms, make.launch(1, 10), make.kernel(NCCL, 40, 5, 1)]))
    row = of_rank(trace.calls, 0, 2).row(0, named=True)
    assert (row["op"], row["bytes"], row["root"], row["group"], row["group_rank"]) == ("broadcast_", 64, 1, "0", 0)


def test_collectives_without_metadata_are_of_the_world(write: Any, make: Any) -> None:
    note = make.host("nccl:all_reduce", 5, 20, "user_annotation", **{"Input Dims": [[10, 3]], "Input type": ["float"]})
    trace = read_trace(write([note, make.launch(1, 10), make.kernel("ncclKernel_SendRecv_RING", 40, 5, 1)]))
    row = of_rank(trace.calls, 1, 8).row(0, named=True)
    assert (row["op"], row["bytes"], row["group"], row["group_size"], row["seq"]) == ("allreduce_", 120, None, 8, None)


def test_stack_of_a_collective(write: Any, make: Any) -> None:
    def frame(name: str, ts: float, dur: float, number: int, parent: int | None) -> Any:
        return make.host(name, ts, dur, "python_function", **{"Python id": number, "Python parent id": parent})

    frames = [frame("train.py(7): main", 0, 90, 1, None), frame("model.py(3): step", 5, 50, 2, 1),
              frame("other.py(1): done", 6, 2, 3, 2)]  # fmt: skip
    trace = read_trace(write([*frames, make.launch(1, 10), make.kernel(NCCL, 40, 5, 1)]))
    assert trace.calls["stack_id"].to_list() == [0]
    assert trace.tables["stacks"]["frames"][0].to_list() == [
        {"file": "model.py", "line": 3, "function": "step"}, {"file": "train.py", "line": 7, "function": "main"},
    ]  # fmt: skip


def test_gloo_on_a_cpu(write: Any, make: Any) -> None:
    note = make.host("gloo:all_reduce", 10, 30, "user_annotation", tid="worker")
    trace = read_trace(write([make.step(0, 0, 50), note], deviceProperties=[]))
    assert trace.device == "cpu"
    assert trace.calls.select("op", "start_ns", "end_ns").rows() == [("allreduce_", 10_000, 40_000)]


@pytest.mark.parametrize(
    ("told", "unknown"),
    [
        ({"In msg nelems": 1 << 62}, {"bytes"}), ({"In msg nelems": -8}, {"bytes"}),
        ({"In msg nelems": None, "Input Dims": "[[2305843009213693952]]", "Input type": '["double"]'}, {"bytes"}),
        ({"Group size": 1 << 40}, {"group_size"}), ({"Group size": -2}, {"group_size"}),
        ({"Global rank start": 1 << 50, "Global rank stride": -1}, set()),
    ],
)  # fmt: skip
def test_counts_that_cannot_be_are_not_known(
    write: Any, make: Any, tmp_path: Path, told: dict[str, Any], unknown: set[str]
) -> None:
    known = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Double", "Group size": 2}
    comm = known | {"Process Group Name": "0"} | told
    events = [make.step(0, 0, 300), make.launch(1, 5), make.kernel(NCCL, 40, 100, 1, stream=9, **comm)]
    outcome = audit_traces([write(events)], tmp_path / "runs")  # and nothing later stumbles over it
    calls = RunRecord(outcome.folder / "trace" / "0").ranks[0].collectives
    wanted = {"bytes": 64, "group_size": 2} | dict.fromkeys(unknown)
    assert calls.select("bytes", "group_size").to_dicts() == [wanted]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allgather_"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "reduce_scatter_"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "broadcast_"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "alltoall_"),
        ("_allgather_base", "allgather_"), ("allreduce_coalesced", "allreduce_"), ("nccl:all_to_all", "alltoall_"),
        ("nccl:send", "send"), ("recv", "recv_"), ("nccl:reduce", "reduce_"), ("my_fusion", "my_fusion"),
    ],
)  # fmt: skip
def test_operators_by_name(name: str, op: str) -> None:
    assert operator(name) == op


def test_innermost_of_nested_calls() -> None:
    #  thread 1: [0, 100) holds [10, 20) and [30, 40); thread 2: [0, 5)
    spans = pl.DataFrame({"start_ns": [0, 10, 30, 0], "end_ns": [100, 20, 40, 5], "thread": [1, 1, 1, 2]})
    threads, at = np.array([1, 1, 1, 1, 2, 2, 3]), np.array([5, 15, 25, 35, 3, 9, 3])
    assert innermost(spans, threads, at).tolist() == [0, 1, 0, 2, 3, -1, -1]
