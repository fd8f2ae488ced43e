"""Torch's own code, followed in fresh processes: the expected settings and functions are those of torch's source."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from magneton_dist.diagnosis.calls import SDPA, Call, Tensor
from magneton_dist.diagnosis.factors import Factor, argument_factors
from magneton_dist.diagnosis.key_variable import KeyVariable, key_variable
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError
from magneton_dist.diagnosis.prove import Flipped
from magneton_dist.diagnosis.trial import Side, Trial

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="code is followed on x86-64 only"),
    pytest.mark.timeout(400),
]
ENABLED, PRECISION = "torch.backends.mkldnn.enabled", "torch.backends.mkldnn.matmul.fp32_precision"
FLASH = "torch.backends.cuda.flash_sdp_enabled"
# one for all tests: an environment has processes of its own
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
SETTINGS = {ENABLED: "True", PRECISION: "ieee", FLASH: "True"}


def tensor(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str = "float32") -> Tensor:
    return Tensor(shape, stride, dtype, "cpu")


def product(dtype: str) -> Call:
    square = tensor((96, 96), (96, 1), dtype)
    return Call("aten.mm.default", ({"v": 0}, {"v": 1}), (square, square))


def convolution(of_input: tuple[int, ...], of_weight: tuple[int, ...]) -> Call:
    arguments = ({"v": 0}, {"v": 1}, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return Call("aten.convolution.default", arguments, (
        tensor((2, 16, 14, 14), of_input), tensor((16, 16, 3, 3), of_weight)
    ))  # fmt: skip


def norm(stride: tuple[int, ...]) -> Call:
    return Call("aten.native_layer_norm.default", ({"v": 0}, [96], None, None, 1e-5), (tensor((96, 96), stride),))


@dataclass(frozen=True)
class Case:
    """`getter`, its `answers`: of the setting that decides; no getter: memory that the function `last` reads does."""

    a: Call
    b: Call
    flips: tuple[tuple[str, str, str], ...] = ()
    getter: str = ""
    answers: tuple[int, int] = (0, 0)
    last: str = ""
    needs: str = ""

    @property
    def factors(self) -> list[Factor]:
        return [Factor("setting", name, (a, b)) for name, a, b in self.flips] or argument_factors(self.a, self.b)

    def right(self, key: KeyVariable) -> bool:
        if self.getter:
            return (key.kind, key.getter, key.answers) == ("setting", self.getter, self.answers)
        return key.kind == "memory" and self.last in key.chain[-1]


HEADS = tensor((1, 2, 8, 8), (128, 64, 8, 1))
ATTENTION = Call(SDPA, ({"v": 0}, {"v": 1}, {"v": 2}), (HEADS, HEADS, HEADS))
PLAIN = convolution((3136, 196, 14, 1), (144, 9, 3, 1))
OFF = ((ENABLED, "True", "False"),)
CASES = {
    # Float32Backend::MKLDNN, Float32Op::MATMUL; Float32Precision::IEEE and ::BF16
    "precision": Case(
        product("float32"), product("float32"), ((PRECISION, "ieee", "bf16"),), "float32Precision(2, 3)", (1, 3),
        needs="avx512_bf16",
    ),
    "bf16-matmul": Case(product("bfloat16"), product("bfloat16"), OFF, "userEnabledMkldnn", (1, 0), needs="avx512"),
    "attention": Case(ATTENTION, ATTENTION, ((FLASH, "True", "False"),), "userEnabledFlashSDP", (1, 0)),
    "convolution": Case(PLAIN, PLAIN, OFF, "userEnabledMkldnn", (1, 0)),
    "layout": Case(
        PLAIN, convolution((3136, 1, 224, 16), (144, 1, 48, 16)), last="at::TensorBase::suggest_memory_format"
    ),
    "norm": Case(norm((96, 1)), norm((1, 96)), last="at::Tensor::expect_contiguous"),
}  # fmt: skip


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    pytest.importorskip("capstone", reason="key variables need the extra explain")
    with Laboratory(3600) as made:
        yield made


def searched(laboratory: Laboratory, case: Case) -> KeyVariable:
    if case.needs and not getattr(torch.cpu, f"_is_{case.needs}_supported")():
        pytest.skip(f"this processor has no {case.needs}")
    return key_variable(trial(laboratory, case))


def trial(laboratory: Laboratory, case: Case) -> Trial:
    return Trial(laboratory, Side(SETTINGS, case.a), Side({}, case.b), case.factors, ENVIRONMENT)


@pytest.mark.parametrize("name", CASES)
def test_what_decides_is_found(laboratory: Laboratory, name: str):
    for _ in range(3):
        key = searched(laboratory, CASES[name])
        assert CASES[name].right(key), key


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_times_what_decides_is_never_wrong(
    laboratory: Laboratory, name: str, record_property: pytest.RecordProperty
):
    """A process that is lost is an answer: that it could not be followed. What is said otherwise must be so."""
    found = Counter(_outcome(CASES[name], searched(laboratory, CASES[name])) for _ in range(100))
    print(name, dict(found))
    for outcome, times in found.items():
        record_property(outcome, times)
    assert found["wrong"] == 0
    assert found["right"] >= 95, found


def _outcome(case: Case, key: KeyVariable) -> str:
    if case.right(key):
        return "right"
    return key.error if key.kind == "unclear" else "wrong"


@pytest.mark.parametrize("name", ["precision", "norm"])
def test_worlds_that_do_the_same_have_no_deviation_point(laboratory: Laboratory, name: str):
    decoy = Case(CASES[name].a, CASES[name].a, (("torch.backends.cudnn.benchmark", "False", "True"),))
    key = searched(laboratory, decoy)
    assert (key.kind, key.deviation) == ("unclear", "")
    assert "same kernels" in key.error
    assert key.lines("mm", ("a", "b")) == [f"key variable: not found: {key.error}"]


def test_the_direction_does_not_matter(laboratory: Laboratory):
    case = CASES["convolution"]
    back = Case(case.a, case.a, ((ENABLED, "False", "True"),))
    settings = {**SETTINGS, ENABLED: "False"}
    key = key_variable(Trial(laboratory, Side(settings, back.a), Side({}, back.a), back.factors, ENVIRONMENT))
    assert (key.getter, key.answers) == ("userEnabledMkldnn", (0, 1))


class Lost:
    """A trial of which `answers` processes answer, and the next one is lost."""

    factors = (Factor("setting", ENABLED, ("True", "False")),)

    def __init__(self, answers: int, error: Exception | None = None) -> None:
        self._left, self._error = answers, error

    def native(self, flipped: Flipped, what: str, question: object, limit_s: float) -> dict[str, Any]:
        assert 0 < limit_s <= 20
        self._left -= 1
        if self._left >= 0:
            return {what: {"functions": [["x.so", 0, "f()"], ["x.so", 8, f"{what}{flipped}"]], "stacks": [[0, 1]]}}
        if self._error is not None:
            raise self._error
        return {"error": "the process ended with SIGSEGV", "lost": True}


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_a_process_that_crashes_is_said(answers: int):
    lost: Any = Lost(answers)
    key = key_variable(lost)
    assert (key.kind, key.error) == ("unclear", "the process ended with SIGSEGV")
    assert key.lines("mm", ("a", "b"))[-1] == "key variable: could not run: the process ended with SIGSEGV"


def test_of_a_gpu_it_is_not_said_that_the_kernels_are_the_same():
    def native(*_: object) -> dict[str, Any]:
        return {"launches": {"functions": [["x.so", 0, "f()"]], "stacks": [[0]]}}

    on_gpu: Any = SimpleNamespace(gpu=True, factors=Lost.factors, native=native)
    key = key_variable(on_gpu)
    assert not key.ran
    assert key.error == "launches on a GPU are not followed, and no operator before them differs"


def test_time_that_is_over_is_said():
    late: Any = Lost(0, OutOfTimeError("the time for the diagnosis is over"))
    assert "time" in key_variable(late).error


def test_without_a_disassembler_the_deviation_point_is_still_told(tmp_path: Path):
    (tmp_path / "capstone.py").write_text("raise ImportError")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    case = CASES["convolution"]
    with Laboratory(300) as laboratory:
        key = key_variable(Trial(laboratory, Side(SETTINGS, case.a), Side({}, case.b), case.factors, environment))
    assert "_select_conv_backend" in key.deviation
    assert "pip install 'magneton-dist[explain]'" in key.error


def test_in_words():
    key = KeyVariable(
        "at::native::f(at::Tensor const&)",
        ["at::native::f(at::Tensor const&)", "if<(A<b, c>), bool>::type n::(anonymous namespace)::g<(X)1>(int)"],
        "setting",
        getter="userEnabledMkldnn", answers=(1, 0),
    )  # fmt: skip
    assert key.lines("aten.mm.default", ("join", "early")) == [
        "deviation point: aten.mm.default parts in at::native::f",
        "key variable: at::native::f <- n::(anonymous namespace)::g<(X)1> <- at::Context::userEnabledMkldnn: 1 as in "
        "join, 0 as in early",
    ]
