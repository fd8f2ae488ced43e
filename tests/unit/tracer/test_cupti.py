"""CUPTI's buffers, through a library that is compiled here and fills them as the real one lays them out."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch

from magneton_dist.importers.captured import with_kernels
from magneton_dist.importers.device import read_device
from magneton_dist.records.schema import TABLES
from magneton_dist.tracer import cupti as cupti_module
from magneton_dist.tracer.cupti import LIBRARIES, Cupti, CuptiError, version
from magneton_dist.tracer.kernels import KernelCapture

SOURCE = Path(__file__).with_name("fake_cupti.c")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    return compiled(tmp_path / "libcupti.so.13")


def compiled(path: Path, *without: str) -> str:
    """The library, without these of its functions."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    left_out = [f"-DWITHOUT_{name}" for name in without]
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *left_out, "-o", str(path), str(SOURCE)], check=True)
    return str(path)


def test_buffers_become_a_trace_that_the_importer_reads(library: str, tmp_path: Path) -> None:
    cupti, fake = Cupti(library), ctypes.CDLL(library)
    fake.fake_base.restype = ctypes.c_uint64
    cupti.start()
    ahead_ns = cupti.stop(str(tmp_path / "trace.json"))
    assert ahead_ns == pytest.approx(7e9, abs=1e6)
    assert not any(fake.fake_enabled(kind) for kind in (1, 2, 4, 5, 10, 22))
    seen = read_device(tmp_path / "trace.json")
    base = fake.fake_base()
    rows = [
        (stream, kind, name, start - base, end - base, None if issue is None else issue - base)
        for stream, kind, name, start, end, issue, *_ in seen.rows.rows()
    ]
    assert rows == [
        (7, "kernel", "gemm", 10_000, 15_500, 1_000),
        (20, "collective", NCCL, 16_000, 30_000, 3_000),  # by the driver, as Triton and NCCL launch
        (7, "memcpy", "Memcpy", 31_000, 32_000, None),
        (7, "memset", "Memset", 33_000, 33_500, None),
        (7, "memcpy", "Memcpy PtoP", 34_000, 34_600, None),
        (7, "kernel", "gemm", 40_000, 41_000, None),  # of a graph: its launch is not a call that was seen
    ]
    assert seen.lost == 0
    assert '"graph node id": 77' in (tmp_path / "trace.json").read_text()
    assert not cupti._buffers
    cupti.start()
    cupti.stop(str(tmp_path / "again.json"))
    assert read_device(tmp_path / "again.json").rows.height == 6


def test_blocks_and_graph_nodes_are_told_in_kinetos_words(library: str, tmp_path: Path) -> None:
    cupti = Cupti(library)
    cupti.start()
    cupti.stop(str(tmp_path / "trace.json"))
    rows = read_device(tmp_path / "trace.json").rows
    kernels = rows.filter(rows["kind"] != "memcpy").select("name", "sm_share", "graph_node", "called_ns").rows()
    assert kernels == [
        ("gemm", 0.25, None, None), (NCCL, 0.25, None, None), ("Memset", None, None, None),
        ("gemm", 0.25, 77, None),  # 33 blocks on 132 SMs
    ]  # fmt: skip
    assert cupti.missing == {}


def test_operators_are_pushed_around_their_calls_and_found_at_their_kernels(library: str, tmp_path: Path) -> None:
    cupti, fake = Cupti(library), ctypes.CDLL(library)
    fake.fake_last.restype = ctypes.c_uint64
    cupti.start()
    assert cupti.operator is None  # nobody asked
    cupti.drop()
    cupti.start(operators=True)
    assert cupti.operator is not None
    with cupti.operator(123456789012345):
        assert (fake.fake_depth(), fake.fake_last()) == (1, 123456789012345)
    assert fake.fake_depth() == 0
    cupti.stop(str(tmp_path / "trace.json"))
    rows = read_device(tmp_path / "trace.json").rows
    assert rows.drop_nulls("called_ns").select("name", "start_ns", "called_ns").rows() == [
        ("gemm", fake_base(fake) + 10_000, 123456789012345),
        ("gemm", fake_base(fake) + 40_000, 123456789099999),  # a node of a graph, which that operator launched
    ]
    assert not fake.fake_enabled(39)


def fake_base(fake: Any) -> int:
    fake.fake_base.restype = ctypes.c_uint64
    return int(fake.fake_base())


def test_a_library_that_lacks_what_kernels_need_says_what(tmp_path: Path) -> None:
    with pytest.raises(CuptiError, match="has no cuptiActivityRegisterCallbacks: it is older or newer"):
        Cupti(compiled(tmp_path / "libcupti.so.12", "REGISTER"))


def test_what_else_a_library_lacks_is_left_out_with_the_reason(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_UNKNOWN_KIND", "22")
    cupti = Cupti(compiled(tmp_path / "libcupti.so.12", "EXTRAS"))
    cupti.start(operators=True)
    assert cupti.operator is None
    cupti.stop(str(tmp_path / "trace.json"))
    assert cupti.missing == {
        "operators": "this library has no cuptiActivityPushExternalCorrelationId, "
        "cuptiActivityPopExternalCorrelationId",
        "copies between devices": "cuptiActivityEnable: CUPTI_ERROR_UNKNOWN (21)",
        "records that were dropped": "this library has no cuptiActivityGetNumDroppedRecords",
    }
    seen = read_device(tmp_path / "trace.json")
    assert (seen.rows.height, seen.lost) == (6, 0)
    monkeypatch.setenv("FAKE_CUPTI_UNKNOWN_KIND", "10")
    with pytest.raises(CuptiError, match="21"):  # without kernels it is of no use
        Cupti(library).start()


def test_what_is_given_up_leaves_nothing(library: str) -> None:
    cupti, fake = Cupti(library), ctypes.CDLL(library)
    cupti.start()
    cupti.drop()
    assert not any(fake.fake_enabled(kind) for kind in (1, 2, 4, 5, 10, 22))
    assert not cupti._buffers
    assert not cupti._full


def test_what_the_library_calls_back_outlives_whoever_gave_it_up(library: str, tmp_path: Path) -> None:
    cupti, fake = Cupti(library), ctypes.CDLL(library)
    cupti.start()
    known = weakref.ref(cupti)
    del cupti
    gc.collect()
    fake.cuptiActivityFlushAll(1)  # fills buffers that it asks for, and hands them back
    kept = known()
    assert kept is not None
    assert len(kept._full) == 2
    kept.drop()


def test_dropped_records_are_counted(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUPTI_DROPPED", "3")
    cupti = Cupti(library)
    cupti.start()
    cupti.stop(str(tmp_path / "trace.json"))
    assert read_device(tmp_path / "trace.json").lost == 3


@pytest.mark.parametrize("held", ["10", "5"])
def test_another_subscriber_is_a_reason_and_nothing_stays_on(library: str, monkeypatch: Any, held: str) -> None:
    monkeypatch.setenv("FAKE_CUPTI_HELD", held)
    with pytest.raises(CuptiError, match="MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"):
        Cupti(library).start()
    fake = ctypes.CDLL(library)
    assert not any(fake.fake_enabled(kind) for kind in (1, 2, 4, 5, 10, 22))


def test_without_the_library_it_says_so() -> None:
    with pytest.raises(CuptiError, match="no library"):
        Cupti("libcupti-that-is-not-there.so")
    assert LIBRARIES[0] == "libcupti.so.13"


def test_it_tells_the_version_that_would_be_used(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_module, "LIBRARIES", ("libcupti-that-is-not-there.so", library))
    assert version() == "130001"
    monkeypatch.setattr(cupti_module, "LIBRARIES", ("libcupti-that-is-not-there.so",))
    with pytest.raises(CuptiError, match="no library"):
        version()


def test_the_version_of_a_library_that_cannot_be_used_is_not_told(tmp_path: Path, monkeypatch: Any) -> None:
    lacking = compiled(tmp_path / "libcupti.so.12", "REGISTER")
    monkeypatch.setattr(cupti_module, "LIBRARIES", (lacking,))
    with pytest.raises(CuptiError, match="cuptiActivityRegisterCallbacks"):
        version()


def test_from_the_librarys_buffers_to_the_operators_of_the_record(
    library: str, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cupti_module, "LIBRARIES", (library,))
    monkeypatch.setenv("FAKE_CUPTI_DROPPED", "2")
    capture = KernelCapture(rows, str(tmp_path), 1, 1, "cupti")
    assert capture.start(operators=True)
    assert capture.operator is not None
    with capture.operator(123456789012345):
        pass
    capture.stop(3)
    tables = {name: table.empty() for name, table in TABLES.items()}
    tables["marks"] = pl.DataFrame(rows.of("mark"), schema=TABLES["marks"].schema, orient="row")
    ops = dict.fromkeys(TABLES["ops"].columns) | {"step": 3, "name": "aten.mm.default", "inputs": [], "outputs": []}
    called = [ops | {"op_id": n, "start_ns": at, "end_ns": at + 1} for n, at in ((8, 123456789012345), (9, 5))]
    tables["ops"] = pl.DataFrame(called, schema=TABLES["ops"].schema)
    made, _ = with_kernels(tables, tmp_path, "GPU-1")
    assert made["activities"].select("kind", "op_id", "graph_node", "sm_share").rows() == [
        ("kernel", 8, None, 0.25), ("collective", None, None, 0.25), ("memcpy", None, None, None),
        ("memset", None, None, None), ("memcpy", None, None, None),
        ("kernel", None, 77, 0.25),  # of an operator that the record does not have
    ]  # fmt: skip
    (said,) = made["faults"]["message"]
    assert said == "step 3: 2 activities cannot be read or were dropped: why the device idled is not told"
    assert not rows.of("fault")
