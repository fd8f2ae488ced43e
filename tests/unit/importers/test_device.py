"""Reading only what ran on devices: the same rows as when all is read, and waits by hand, in µs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.importers.device import read_device
from magneton_dist.importers.kineto import read_trace

US = 1_000
SAME = ("stream", "kind", "name", "start_ns", "end_ns", "graph_node", "sm_share")


@pytest.mark.parametrize(
    "name",
    [
        "param-dlrm-8xV100/rank-0.json.gz", "hta-nccl-meta-1of2xA100/rank-0.json.gz",
        "tracelens/b200__eager_trace.json.gz", "hta-sampled-2of128/rank-0.json.gz",
    ],
)  # fmt: skip
def test_rows_are_those_of_the_whole_trace(traces: Path, name: str) -> None:
    whole = read_trace(traces / name).tables["activities"].select(SAME)
    assert whole.height > 100
    assert read_device(traces / name).rows.select(SAME).equals(whole)


def test_launches_are_met_by_the_first_of_their_correlation(write: Any, make: Any) -> None:
    path = write([
        make.launch(2, 20), make.launch(1, 30), make.launch(1, 40), make.launch(0, 50),
        make.kernel("b", 70, 5, 1), make.kernel("a", 60, 5, 2), make.kernel("c", 80, 5, 3), make.kernel("d", 90, 5, 0),
    ])  # fmt: skip
    rows = read_device(path).rows.select("name", "issue_ns").rows()
    assert rows == [("a", 20 * US), ("b", 30 * US), ("c", None), ("d", None)]  # 0 is no correlation


def test_waits_are_those_of_the_main_thread_with_torchs_innermost_operator(write: Any, make: Any) -> None:
    sync = "cudaStreamSynchronize"
    path = write([
        make.host("aten::to", 0, 100, tid=100), make.host("aten::copy_", 10, 50, tid=100),  # pid 100
        make.host("magneton_dist.operator#7", 12, 40, tid=100),
        make.host(sync, 20, 30, "cuda_runtime", tid=100, correlation=5),
        make.host(sync, 25, 30, "cuda_runtime", tid=8, correlation=6),
        make.host(sync, 200, 10, "cuda_runtime", tid=100, correlation=7),
        make.host("cudaMalloc", 300, 10, "cuda_runtime", tid=100, correlation=8),
    ])  # fmt: skip
    assert read_device(path).waits.rows() == [
        (20 * US, 50 * US, "aten::copy_", 7), (200 * US, 210 * US, "", None),
    ]  # fmt: skip


def test_names_that_only_look_announced_are_torchs(write: Any, make: Any) -> None:
    names = ["magneton_dist.operator#", "magneton_dist.operator#7x", f"magneton_dist.operator#{10**30}"]
    events = [make.host(name, 10 * n, 5, tid=100, **{"External id": n}) for n, name in enumerate(names, 1)]
    kernels = [make.kernel("k", 100 + n, 1, n, **{"External id": n}) for n in (1, 2, 3)]
    kernels[0]["args"]["correlation"] = 9  # else the ids would be taken for correlations
    rows = read_device(write([*events, *kernels])).rows
    assert rows["called_ns"].to_list() == [None] * 3


def test_a_trace_without_events_holds_none(write: Any) -> None:
    seen = read_device(write([]))
    assert (seen.rows.height, seen.waits.height, seen.lost) == (0, 0, 0)
    assert seen.rows.schema["issue_ns"] == pl.Int64


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "1", "nodes": []}')
    with pytest.raises(RecordError, match="a PyTorch execution trace"):
        read_device(tmp_path / "x.json")
