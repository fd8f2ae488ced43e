from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from magneton_dist.energy.replay.operator import Operator
from magneton_dist.errors import InputError


def value(storage: int, *shape: int, **changes: Any) -> dict[str, Any]:
    stride = [1]
    for length in reversed(shape[1:]):
        stride.insert(0, stride[0] * length)
    known = {"storage": storage, "offset": 0, "shape": list(shape), "stride": stride, "dtype": "float32"}
    return {**known, "device": "cpu", "role": "activation", **changes}


def made(operator: Operator) -> list[Any]:
    return operator._positional


def test_an_operator_is_called_with_inputs_of_the_recorded_kind() -> None:
    values = {"1": value(1, 5), "2": value(2, 4, 3), "3": value(3, 3, 5, stride=[1, 3])}
    operator = Operator("aten.addmm.default", [{"v": 1}, {"v": 2}, {"v": 3}], values, "cpu", 0)
    bias, a, b = made(operator)
    assert [t.shape for t in (bias, a, b)] == [(5,), (4, 3), (3, 5)]
    assert b.stride() == (1, 3)
    assert not operator.restores
    operator()
    again = Operator("aten.addmm.default", [{"v": 1}, {"v": 2}, {"v": 3}], values, "cpu", 0)
    assert torch.equal(made(again)[1], a)
    other = Operator("aten.addmm.default", [{"v": 1}, {"v": 2}, {"v": 3}], values, "cpu", 1)
    assert not torch.equal(made(other)[1], a)


def test_what_is_written_into_is_put_back() -> None:
    values = {"1": value(1, 100), "2": value(2, 100)}
    operator = Operator("aten.mul_.Tensor", [{"v": 1}, {"v": 2}], values, "cpu", 0)
    assert operator.restores
    x, y = made(operator)
    before = x.clone()
    for _ in range(3):
        operator()
        assert torch.equal(x, before * y)
    operator.restore()
    assert torch.equal(x, before)


def test_tensors_of_one_storage_share_it() -> None:
    values = {"1": value(7, 2, 3), "2": value(7, 3, offset=3)}
    x, y = made(Operator("aten.add.Tensor", [{"v": 1}, {"v": 2}], values, "cpu", 0))
    assert torch.equal(x[1], y)
    x[1, 0] = 5.0
    assert y[0] == 5.0


def test_indices_are_inside_what_they_index() -> None:
    values = {"1": value(1, 50, 8), "2": value(2, 4, 9, dtype="int64")}
    weight, indices = made(Operator("aten.embedding.default", [{"v": 1}, {"v": 2}], values, "cpu", 0))
    assert 0 <= int(indices.min()) <= int(indices.max()) < len(weight)


def test_keywords_types_and_lists_are_understood() -> None:
    named = [
        {"name": "dtype", "value": {"dtype": "bfloat16"}},
        {"name": "layout", "value": {"layout": "strided"}},
        {"name": "device", "value": {"device": "cpu"}},
    ]
    operator = Operator("aten.arange.start", [0, {"float": "12"}, *named], {}, "cpu", 0)
    assert operator._named == {"dtype": torch.bfloat16, "layout": torch.strided, "device": torch.device("cpu")}
    operator()
    values = {"1": value(1, 2), "2": value(2, 3)}
    Operator("aten.cat.default", [[{"v": 1}, {"v": 2}], 0], values, "cpu", 0)()
    lists = Operator("aten._foreach_add_.Scalar", [[{"v": 1}, {"v": 2}], 1.0], values, "cpu", 0)
    assert lists.restores
    lists()


def test_kept_contents_are_used(tmp_path: Path) -> None:
    kept = torch.arange(6, dtype=torch.int64)
    (tmp_path / "1.bin").write_bytes(kept.numpy().tobytes())
    values = {"1": value(1, 2, 3, dtype="int64", path=str(tmp_path / "1.bin"))}
    assert torch.equal(made(Operator("aten.neg.default", [{"v": 1}], values, "cpu", 0))[0], kept.view(2, 3))
    values["1"]["shape"], values["1"]["stride"] = [200, 3], [3, 1]
    with pytest.raises(InputError, match="cannot be read"):
        Operator("aten.neg.default", [{"v": 1}], values, "cpu", 0)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("os.system.default", ["true"], "no operator of aten"),
        ("aten.__class__.mro", [], "no such operator"),
        ("aten.from_file.default", ["/etc/passwd"], "opens files"),
        ("aten._print.default", ["mine"], "prints"),
        ("aten.no_such_thing.default", [], "no such operator"),
        ("aten.neg.default", [{"v": 9}], "nothing was recorded of value 9"),
        ("aten.neg.default", [{"type": "Generator"}], "recorded only as"),
        ("aten.view.default", [{"v": 1}, [1, {"more": 5}]], "recorded only as"),
        ("aten.neg.default", [{"v": 2}], "more than 16 GiB"),
        ("aten.neg.default", [{"v": 3}], "no dtype Module"),
    ],
)
def test_what_cannot_or_must_not_be_called_is_refused(name: str, arguments: list[Any], why: str) -> None:
    values = {"1": value(1, 4), "3": value(3, 4, dtype="Module")}
    if arguments == [{"v": 2}]:
        values = {"2": value(2, 1 << 40)}
    if arguments != [{"v": 3}]:
        values.pop("3", None)
    with pytest.raises(InputError, match=why):
        Operator(name, arguments, values, "cpu", 0)
