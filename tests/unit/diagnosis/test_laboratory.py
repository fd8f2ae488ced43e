"""Fresh processes that really run operators."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from magneton_dist.diagnosis import laboratory as laboratory_module
from magneton_dist.diagnosis.calls import SDPA, Call, Tensor
from magneton_dist.diagnosis.knob_map import cache_folder, knob_map
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError, _end
from magneton_dist.diagnosis.signature import primitives
from magneton_dist.diagnosis.trial import Side, Trial

SQUARE = Tensor((96, 96), (96, 1), "float32", "cpu")
PRODUCT = Call("aten.mm.default", ({"v": 0}, {"v": 1}), (SQUARE, SQUARE))
# one for all tests: an environment has processes of its own
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
QUESTION: dict[str, Any] = {
    "settings": {}, "flips": [], "read": [], "getters": [], "call": None, "signature": False, "seconds": False,
    "read_set": False, "launches": False, "steps": None, "slice": None, "repeat_s": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with Laboratory(900) as made:
        yield made


def ask(laboratory: Laboratory, call: Call | None = None, **more: Any) -> dict[str, Any]:
    described = None if call is None else call.described()
    return laboratory.ask(ENVIRONMENT, {**QUESTION, "call": described, **more})


def test_a_flip_stays_in_its_process(laboratory: Laboratory):
    name = "torch.backends.mkldnn.enabled"
    found = ask(laboratory, flips=[(name, "False")], read=[name, "torch._C._get_mkldnn_enabled"])
    assert found == {"refused": [], "read": {name: "False", "torch._C._get_mkldnn_enabled": "False"}}
    assert ask(laboratory, read=[name])["read"] == {name: str(torch.backends.mkldnn.enabled)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch.get_num_threads", "1"),
        ("torch.get_default_dtype", "torch.bfloat16"),
        ("torch.get_float32_matmul_precision", "high"),
        ("torch.are_deterministic_algorithms_enabled", "True"),
        ("torch.backends.cuda.flash_sdp_enabled", "False"),
        ("torch.backends.mha.get_fastpath_enabled", "False"),
        ("torch._C._get_nnpack_enabled", "False"),
        ("torch._C._get_sdp_priority_order", "[2, 1, 0, 3, 4]"),
    ],
)
def test_settings_of_every_kind_can_be_set_from_their_text(laboratory: Laboratory, name: str, value: str):
    assert ask(laboratory, flips=[(name, value)], read=[name]) == {"refused": [], "read": {name: value}}


@pytest.mark.parametrize(
    "name", ["torch.load", "torch.backends.nothing", "os.environ", "torch.hub.set_dir", "torch._C._get_x()", "torch"]
)
def test_what_is_no_setting_is_refused(laboratory: Laboratory, name: str):
    assert ask(laboratory, flips=[(name, "1")], read=[name]) == {"refused": [name], "read": {}}


def test_a_setting_that_torch_does_not_tell_is_left_out_and_the_others_are_not(laboratory: Laboratory):
    """Its old and new settings of TF32 contradict then, and it raises."""
    new, old = "torch.backends.cuda.matmul.fp32_precision", "torch.backends.cuda.matmul.allow_tf32"
    found = ask(laboratory, flips=[(new, "tf32"), (old, "True")], read=[old, new])
    assert found == {"refused": [old], "read": {new: "tf32"}}


def test_a_call_tells_its_operators_and_its_time(laboratory: Laboratory):
    found = ask(laboratory, PRODUCT, signature=True, seconds=True)
    assert found["signature"]["operators"][0] == "aten::mm"
    assert 1e-7 < found["seconds"] < 1.0


def test_attention_obeys_the_setting(laboratory: Laboratory):
    each = Tensor((1, 2, 8, 8), (128, 64, 8, 1), "float32", "cpu")
    call = Call(SDPA, ({"v": 0}, {"v": 1}, {"v": 2}), (each, each, each))
    flash = ask(laboratory, call, signature=True)
    math = ask(laboratory, call, signature=True, flips=[("torch.backends.cuda.flash_sdp_enabled", "False")])
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in flash["signature"]["operators"]
    assert "aten::_scaled_dot_product_attention_math" in math["signature"]["operators"]


def test_a_strided_input_is_rebuilt_as_it_lay(laboratory: Laboratory):
    arguments = ({"v": 0}, [96], None, None, 1e-5)
    for strides, copies in (((96, 1), 0), ((1, 96), 1)):
        call = Call("aten.native_layer_norm.default", arguments, (Tensor((96, 96), strides, "float32", "cpu"),))
        found = ask(laboratory, call, signature=True)
        assert found["signature"]["operators"].count("aten::copy_") == copies


@pytest.mark.parametrize(
    "call",
    [
        Call("aten.from_file.default", ("/tmp/x", True, 4), ()),
        Call("c10d.allreduce_.default", ({"v": 0},), (SQUARE,)),
        Call("aten.nothing.default", (), ()),
        Call("aten.mm.default", ({"v": 0}, {"type": "Thing"}), (SQUARE,)),
    ],
)
def test_what_is_no_computation_or_not_recorded_is_an_error(laboratory: Laboratory, call: Call):
    assert "NotReplayableError" in ask(laboratory, call)["error"]


def test_a_process_that_dies_is_an_error_and_the_next_one_lives(laboratory: Laboratory):
    wrong = Call("aten.mm.default", ({"v": 0}, {"v": 0}), (Tensor((2, 3), (3, 1), "float32", "cpu"),))
    assert "RuntimeError" in ask(laboratory, wrong)["error"]
    huge = Tensor((1 << 40,), (1,), "float32", "cpu")
    assert "error" in ask(laboratory, Call("aten.neg.default", ({"v": 0},), (huge,)))
    assert ask(laboratory, PRODUCT).keys() == {"refused", "read"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="getters are followed on x86-64 only")
def test_a_call_tells_which_settings_it_asks_for(laboratory: Laboratory):
    name = "torch.backends.mkldnn.enabled"
    before = ask(laboratory, PRODUCT, read_set=True)["read_set"]
    after = ask(laboratory, PRODUCT, read_set=True, flips=[(name, "False")])["read_set"]
    assert (before["userEnabledMkldnn"], after["userEnabledMkldnn"]) == (1, 0)
    decoy = ask(laboratory, PRODUCT, read_set=True, flips=[("torch.backends.cudnn.benchmark", "True")])["read_set"]
    assert decoy == before
    attention = Call(SDPA, ({"v": 0},) * 3, (Tensor((1, 2, 8, 8), (128, 64, 8, 1), "float32", "cpu"),))
    assert ask(laboratory, attention, read_set=True)["read_set"]["userEnabledFlashSDP"] == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="getters are followed on x86-64 only")
def test_a_map_of_this_torch_knows_which_getter_a_setting_answers(laboratory: Laboratory, tmp_path: Path):
    settings = {
        "torch.backends.mkldnn.enabled": "True", "torch.backends.cudnn.benchmark": "False",
        "torch.backends.mkldnn.matmul.fp32_precision": "ieee", "torch.backends.mha.get_fastpath_enabled": "True",
    }  # fmt: skip
    trial = Trial(laboratory, Side(settings, PRODUCT), Side(settings, PRODUCT), [], ENVIRONMENT)
    made = knob_map(trial, "2.99+x", tmp_path)
    assert made.getters == {
        "torch.backends.mkldnn.enabled": ["userEnabledMkldnn"],
        "torch.backends.cudnn.benchmark": ["benchmarkCuDNN"],
        "torch.backends.mkldnn.matmul.fp32_precision": ["float32Precision(2, 3)"],
        "torch.backends.mha.get_fastpath_enabled": [],  # Python's own: no part of the context
    }
    assert len(made.asked) > 20
    asked = laboratory.asked
    assert knob_map(trial, "2.99+x", tmp_path) == made
    assert laboratory.asked == asked
    (kept,) = tmp_path.iterdir()
    kept.write_text("{}")  # damaged: made again
    assert knob_map(trial, "2.99+x", tmp_path) == made


def test_a_user_without_a_home_has_no_map_kept(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch):
    def no_home(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(no_home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() is None
    trial = Trial(laboratory, Side({}, PRODUCT), Side({}, PRODUCT), [], ENVIRONMENT)
    assert knob_map(trial, "2.99+x").getters == {}


def test_an_environment_has_processes_of_its_own():
    with Laboratory(900) as laboratory:
        for threads in ("1", "2"):
            environment = {**ENVIRONMENT, "OMP_NUM_THREADS": threads}
            found = laboratory.ask(environment, {**QUESTION, "read": ["torch.get_num_threads"]})
            assert found["read"] == {"torch.get_num_threads": threads}


def test_processes_that_somebody_killed_are_started_again(laboratory: Laboratory):
    ask(laboratory)
    (zygote,) = laboratory._zygotes.values()
    zygote.kill()
    zygote.wait()
    assert ask(laboratory, PRODUCT).keys() == {"refused", "read"}
    assert [process.poll() for process in laboratory._zygotes.values()] == [None]


def test_no_process_is_left_when_one_is_interrupted_while_it_starts(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    ended = []
    monkeypatch.setattr(laboratory_module, "_line", interrupted)
    monkeypatch.setattr(laboratory_module, "_end", lambda zygote: (_end(zygote), ended.append(zygote.returncode)))
    with Laboratory(900) as laboratory, pytest.raises(KeyboardInterrupt):
        ask(laboratory)
    assert ended == [-signal.SIGKILL]


def test_a_call_that_takes_too_long_is_ended_and_said(laboratory: Laboratory):
    found = laboratory.ask(ENVIRONMENT, {**QUESTION, "call": PRODUCT.described(), "repeat_s": 60.0}, limit_s=1.0)
    assert found == {"error": "the process was ended after 1 s", "lost": True}


def test_fresh_processes_are_those_that_end_when_memory_runs_out(laboratory: Laboratory):
    ask(laboratory)
    (zygote,) = laboratory._zygotes.values()
    assert Path(f"/proc/{zygote.pid}/oom_score_adj").read_text() == "1000\n"


def test_time_that_is_over_is_said():
    with Laboratory(0.0) as laboratory, pytest.raises(OutOfTimeError):
        ask(laboratory)


def test_primitives_are_read_from_what_the_libraries_print():
    lines = [
        "onednn_verbose,v1,info,oneDNN v3.9.1",
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core,undef,src:f32::blocked:ab::f0 "
        "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,attr-scratchpad:user attr-fpmath:bf16,,512x512:512x512,0.9",
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,64,0.01",
        "MKL_VERBOSE oneMKL 2024.2 Product build",
        "MKL_VERBOSE SGEMM(N,N,512,512,512,0x7ffd,0x7f) 1.20ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2",
        "MKL_VERBOSE SGEMM(N,N,512,512,512,0x7ffd,0x7f) 1.30ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2",
        "hello",
    ]
    assert list(primitives(lines)) == [
        "onednn:matmul:brg_matmul:avx512_core:bf16", "onednn:reorder:jit:uni", "mkl:SGEMM:CNR:OFF:NThr:2",
    ]  # fmt: skip
