"""Where processes are forked, and where they are not; what they answer is in `test_laboratory`."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magneton_dist.diagnosis import zygote
from magneton_dist.diagnosis.calls import Call, Tensor
from magneton_dist.diagnosis.trial import NOTHING


def product(device: str, **wanted: Any) -> dict[str, Any]:
    square = Tensor((8, 8), (8, 1), "float32", device)
    call = Call("aten.mm.default", ({"v": 0}, {"v": 1}), (square, square)).described()
    return {**NOTHING, "call": call, "limit_s": 60, **wanted}


@pytest.mark.parametrize(("code", "spawned"), [(3, False), (0, True), (100, True)])
def test_a_call_on_a_gpu_is_forked_only_where_nobody_began_cuda(
    code: int, spawned: bool, monkeypatch: pytest.MonkeyPatch
):
    """3 is CUDA_ERROR_NOT_INITIALIZED, 100 CUDA_ERROR_NO_DEVICE: the driver was begun, and found none."""
    driver = SimpleNamespace(cuDeviceGetCount=lambda _: code)
    monkeypatch.setattr(zygote.ctypes, "CDLL", lambda *_: driver)
    assert zygote._must_spawn(product("cuda:0")) is spawned
    assert not zygote._must_spawn(product("cpu"))
    assert not zygote._must_spawn({**NOTHING})


def test_without_a_driver_everything_is_forked():
    assert not zygote._must_spawn(product("cuda:0"))


def test_a_process_of_its_own_answers_the_same():
    found = json.loads(zygote._spawned(product("cpu", signature=True)))
    assert found["signature"]["operators"][0] == "aten::mm"
    assert json.loads(zygote._spawned(product("cpu", repeat_s=60.0, limit_s=1))) == {
        "error": "the process was ended after 1 s", "lost": True,
    }  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="getters are followed on x86-64 only")
def test_what_libraries_are_told_is_noted_and_handed_on(tmp_path: Path):
    """The C library's `ftruncate64(file, bytes)` stands for cuBLAS's calls: torch calls it through the same tables."""
    code = f"""
import json, torch
from magneton_dist.diagnosis import read_set
read_set.TOLD = ("ftruncate64",)
call = lambda: torch.UntypedStorage.from_file({str(tmp_path / "storage")!r}, True, 12345)
print(json.dumps(read_set.read_set(call)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ended.stdout) == {"ftruncate64": 12345}
    assert (tmp_path / "storage").stat().st_size == 12345
