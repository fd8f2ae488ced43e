from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import polars as pl

from magneton_dist.diagnosis.factors import argument_factors
from magneton_dist.diagnosis.fixes import fix_text, statement
from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.diagnosis.optimizers import optimizer_call
from magneton_dist.diagnosis.prove import Proof, Verdict, prove
from magneton_dist.diagnosis.trial import Side, Trial
from magneton_dist.records.schema import VALUES

SETTINGS = {
    "optimizer.class": "AdamW", "optimizer.group0.lr": "0.001", "optimizer.group0.betas": "(0.9, 0.999)",
    "optimizer.group0.foreach": "None", "optimizer.group0.fused": "None", "optimizer.group0.initial_lr": "0.001",
}  # fmt: skip


def record() -> Any:
    row = {
        "value_id": 1, "storage": 1, "version": 0, "offset": 0, "shape": [8, 8], "stride": [8, 1], "dtype": "float32",
        "device": "cpu", "bytes": 256, "role": "parameter", "slot": "weight", "kept": True,
    }  # fmt: skip
    rows = [
        row,
        row | {"value_id": 2, "version": 1},
        row | {"value_id": 3, "slot": "bias", "shape": [8], "stride": [1]},
        row | {"value_id": 4, "role": "activation", "slot": None},
    ]
    return SimpleNamespace(step=SimpleNamespace(values=pl.DataFrame(rows, schema=VALUES.schema)))


def test_a_step_is_the_class_its_arguments_and_each_parameter_once():
    call = optimizer_call(SETTINGS, record())
    assert call is not None
    assert call.operator == "torch.optim.AdamW"
    assert [tensor.shape for tensor in call.tensors] == [(8, 8), (8,)]
    assert [a["name"] for a in call.arguments[1:]] == ["betas", "foreach", "fused", "lr"]


def test_several_optimizers_are_left_alone():
    assert optimizer_call(SETTINGS | {"optimizer1.class": "SGD"}, record()) is None
    assert optimizer_call({}, record()) is None


def test_an_argument_of_the_optimizer_is_proved():
    a, b = (optimizer_call(SETTINGS | {"optimizer.group0.foreach": value}, record()) for value in ("False", "True"))
    assert a is not None
    assert b is not None
    factors = argument_factors(a, b)
    assert [(f.name, f.values) for f in factors] == [("foreach of AdamW", ("False", "True"))]
    assert statement(factors[0], 1) == "AdamW(..., foreach=True)"
    told = "In loop, hand over this argument as lists does: `AdamW(..., foreach=True)`."  # not where it steps
    assert fix_text(factors, 1, ("loop", "lists"), "train.py:3") == told
    with Laboratory(600) as laboratory:
        trial = Trial(laboratory, Side({}, a), Side({}, b), factors, dict(os.environ))
        assert prove(1, trial.signature) == Proof(Verdict.PROVED, (0,))
        assert "aten::_foreach_add_" in trial.signature(frozenset({0})).operators
        assert "aten::_foreach_add_" not in trial.signature(frozenset()).operators
