import sys

import numpy as np
import pytest
import torch

import magneton_dist
from magneton_dist.errors import InputError
from magneton_dist.frontends import record as module


def test_the_framework_is_told_by_inputs_however_deep():
    record = magneton_dist.record(lambda tree: tree["x"][0] + 1, {"tree": {"x": [torch.ones(9)]}})
    assert record.framework == "torch"
    assert record.ops["name"].to_list() == ["aten.add.Tensor"]


def test_the_framework_is_told_by_the_callable():
    assert magneton_dist.record(torch.nn.ReLU(), {"input": torch.ones(9)}).name == "ReLU"


@pytest.mark.parametrize(
    ("inputs", "framework", "match"),
    [
        ((np.ones(3),), "auto", "cannot be told.*set framework="),
        ((torch.ones(3),), "pytorch", "no framework is called 'pytorch'.*torch, fx, jax, tensorflow"),
        (torch.ones(3), "torch", "inputs is a Tensor.*tuple"),
    ],
)
def test_what_is_wrong_with_the_call_is_said(inputs, framework, match):
    with pytest.raises(InputError, match=match):
        magneton_dist.record(lambda x: x, inputs, framework=framework)


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_a_framework_that_is_not_installed_names_its_extra(framework, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, module._RECORDERS[framework], raising=False)
    with pytest.raises(InputError, match=rf"{framework}.* not installed.*magneton-dist\[{framework}\]"):
        magneton_dist.record(lambda x: x, (np.ones(3),), framework=framework)


def test_no_other_framework_is_imported_for_torch(monkeypatch):
    for name in ("jax", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it would fail
    assert magneton_dist.record(torch.relu, (torch.ones(9),)).ops.height == 1
