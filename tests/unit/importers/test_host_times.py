"""Why a device idled, on traces whose gaps are counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.importers import host_times
from magneton_dist.importers.kineto import read_trace
from magneton_dist.records.host_times import HOST_TIMES, read_host_times, write_host_times
from magneton_dist.reports.story import idle_sentence
from magneton_dist.traces import audit_traces

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.fixture
def trace(write: Any, make: Any) -> Path:
    """One step of 100 us. Idle: 0-20 (launched at 12, loading from 2 to 8), 30-70 (launched at 25), 80-90 (unknown)."""
    return write(
        [
            make.step(4, 0, 100), make.host(LOADER, 2, 6, "user_annotation"),
            make.host("aten::mm", 10, 5), make.launch(1, 12), make.kernel("a", 20, 10, 1),
            make.host("aten::add", 24, 3), make.launch(2, 25), make.kernel("b", 70, 10, 2),
            make.kernel("c", 90, 10, 99),
            make.host("aten::item", 40, 41), make.host("cudaStreamSynchronize", 42, 38, "cuda_runtime", correlation=0),
        ]
    )  # fmt: skip


def rows(table: pl.DataFrame) -> list[tuple[Any, ...]]:
    return table.select("kind", "what", "count", "duration_ns", "step").sort("kind").rows()


def test_idle_time_by_cause(trace: Path) -> None:
    table = HOST_TIMES.validate(read_trace(trace).host_times, "host_times")
    assert rows(table) == [
        ("host", "aten::mm", 1, 6_000, 4),  # until 12 but for 6 of the loader
        ("launch", "aten::add", 1, 40_000, 4),
        ("launch", "aten::mm", 1, 8_000, 4),
        ("loader", LOADER, 1, 6_000, 4),
        ("sync", "aten::item", 1, 38_000, 4),
        ("unknown", "", 1, 10_000, 4),
    ]


def test_parts_add_up_to_the_idle_state(trace: Path, tmp_path: Path) -> None:
    outcome = audit_traces([trace], tmp_path / "runs")
    idle = outcome.audit.variants["trace"].ranks[0].states["working/idle"].s
    table = read_host_times(outcome.folder / "trace" / "0" / "ranks" / "00000").filter(pl.col("kind") != "sync")
    assert table["duration_ns"].sum() / 1e9 == pytest.approx(idle)


def test_small_causes_are_put_together(trace: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_times, "MOST_CAUSES", 2)
    table = read_trace(trace).host_times
    whole = {"host": 6_000, "launch": 48_000, "loader": 6_000, "sync": 38_000, "unknown": 10_000}
    assert dict(table.group_by("kind").agg(pl.col("duration_ns").sum()).iter_rows()) == whole
    assert set(table["what"]) == {"aten::add", "aten::item", ""}  # the loader's is among the small ones


def test_written_and_read(trace: Path, tmp_path: Path) -> None:
    table = read_trace(trace).host_times
    assert read_host_times(tmp_path).equals(HOST_TIMES.empty())
    write_host_times(tmp_path, table)
    assert read_host_times(tmp_path).equals(table)


def test_findings_name_operator_and_fix(trace: Path, tmp_path: Path) -> None:
    found = {(f.kind, f.fix[:3]): f for f in audit_traces([trace], tmp_path / "runs").audit.findings}
    # host 6 % of the step is below its floor; the loader's 6 %, the launches' 48 % and the spinning's 38 % are not
    assert set(found) == {("host-idle", "Let"), ("host-idle", "Lau"), ("host-spin", "Lea")}
    launch, spin = found["host-idle", "Lau"], found["host-spin", "Lea"]
    assert (launch.seconds, launch.where.what) == (pytest.approx(48e-6), "before aten::add")
    assert (spin.seconds, spin.where.what) == (pytest.approx(38e-6), "synchronisation within aten::item")
    assert (spin.joules, spin.energy_kind) == (None, "unmeasured")
    loading = found["host-idle", "Let"]
    assert loading.title.endswith("their hosts fetch data, by a DataLoader without workers")
    assert loading.where.what == f"in {LOADER}"


def test_a_busy_device_is_silent(write: Any, make: Any, tmp_path: Path) -> None:
    events = [make.step(0, 0, 1000), make.host("aten::mm", 0, 900)]
    for k in range(10):
        events += [make.launch(k + 1, 50 * k), make.kernel("gemm", 100 * k + 1, 99, k + 1)]
    assert audit_traces([write(events)], tmp_path / "runs").audit.findings == []


def test_communication_that_nobody_knows_the_peers_of_is_not_hidden(write: Any, make: Any, tmp_path: Path) -> None:
    # the first of two ranks: 40 us of its collective lie under compute, 60 us do not
    reduce = make.kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 100, 2, stream=9,
        **{"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Group size": 2},
    )  # fmt: skip
    events = [
        make.step(0, 0, 200), make.launch(1, 0), make.kernel("gemm", 1, 79, 1), make.launch(2, 5), reduce,
        make.launch(3, 6), make.kernel("gemm", 150, 50, 3),
    ]  # fmt: skip
    info = {"rank": 0, "world_size": 2}
    variant = audit_traces([write(events, distributedInfo=info)], tmp_path / "runs").audit.variants["trace"]
    assert variant.ranks[0].unjoined_s == pytest.approx(60e-6)
    assert idle_sentence(variant).startswith("40 % of the time in collectives is hidden behind compute.")


def test_the_report_says_why(trace: Path, tmp_path: Path) -> None:
    variant = audit_traces([trace], tmp_path / "runs").audit.variants["trace"]
    idle = {"host": 6e-6, "launch": 48e-6, "loader": 6e-6, "unknown": 10e-6}
    assert variant.ranks[0].idle_s == pytest.approx(idle)
    assert idle_sentence(variant) == (
        "Devices idled 70 % of the time: the loader 6.0 %, a host that has launched nothing 6.0 %, "
        "between launch and start 48 %, unknown 10 %."
    )
