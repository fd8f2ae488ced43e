"""What read-sets say, and whom they agree with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from magneton_dist.diagnosis.factors import Factor
from magneton_dist.diagnosis.layers import READ_SET, Layers


def layers(a: dict[str, int], b: dict[str, int], factor: Factor) -> Layers:
    read_sets = {frozenset[int](): (a, ""), frozenset({0}): (b, "")}
    trial: Any = SimpleNamespace(factors=[factor], read_set=read_sets.__getitem__)
    return Layers(trial, "aten.mm.default", ("a", "b"))


def test_what_a_library_is_told_is_said_and_is_no_setting_of_torch():
    """As where an argument makes another cuBLAS call: 0 is CUBLAS_DEFAULT_MATH, 3 CUBLAS_TF32_TENSOR_OP_MATH."""
    dtype = Factor("argument", "dtype of self", ("float32", "bfloat16"), tensor=0, aspect="dtype")
    found = layers({"cublasSetMathMode": 0}, {"cublasSetMathMode": 3}, dtype)
    assert found.lines == [
        "read-set: aten.mm.default tells its libraries: cublasSetMathMode is 0 as in a, 3 as in b"
    ]
    assert found.agreeing([dtype]) == [READ_SET]


def test_an_argument_alone_does_not_change_what_settings_answer():
    dtype = Factor("argument", "dtype of self", ("float32", "bfloat16"), tensor=0, aspect="dtype")
    found = layers({"float32Precision(1, 3)": 1}, {"float32Precision(1, 3)": 2, "cublasSetMathMode": 3}, dtype)
    assert found.lines == [
        "read-set: aten.mm.default asks at::Context: float32Precision(1, 3) is 1 as in a, 2 as in b",
        "read-set: aten.mm.default tells its libraries: cublasSetMathMode is not asked as in a, 3 as in b",
    ]
    assert found.agreeing([dtype]) == []


def test_settings_of_which_some_are_asked_with_the_same_answers_are_counted():
    same = {"userEnabledCuDNN": 1, "benchmarkCuDNN": 0, "cublasSetMathMode": 0}
    layout = Factor("argument", "layout of input", ("contiguous", "channels_last"), tensor=0, aspect="layout")
    found = layers(same, same, layout)
    assert found.lines == [
        "read-set: aten.mm.default asks 2 of torch's settings, with the same answers in both variants' worlds"
    ]
    assert found.agreeing([layout]) == [READ_SET]
