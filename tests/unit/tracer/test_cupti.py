"""CUPTI's buffers, through a library that is compiled here and fills them as the real one lays them out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from magneton_dist.importers.kineto import read_device
from magneton_dist.tracer import cupti as cupti_module
from magneton_dist.tracer.cupti import LIBRARIES, Cupti, CuptiError, version

SOURCE = Path(__file__).with_name("fake_cupti.c")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path / "libcupti.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
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


def test_what_is_given_up_leaves_nothing(library: str) -> None:
    cupti, fake = Cupti(library), ctypes.CDLL(library)
    cupti.start()
    cupti.drop()
    assert not any(fake.fake_enabled(kind) for kind in (1, 2, 4, 5, 10, 22))
    assert not cupti._buffers
    assert not cupti._full


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
