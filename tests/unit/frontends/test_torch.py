import pytest
import torch
from torch import nn

import magneton_dist
from magneton_dist.errors import InputError
from magneton_dist.records.validation import validate

from .conftest import Shown, same


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).softmax(-1)


# t, addmm of the first layer; relu; t, mm of the second; softmax
OPERATORS = ["t", "addmm", "relu", "t", "mm", "_softmax"]


def test_a_callable_is_recorded_with_its_parameters_and_values():
    net, x = Net(), torch.ones(3, 6)
    with torch.no_grad():
        shown = Shown(magneton_dist.record(net, (x,)))
    assert shown.record.framework == "torch"
    assert shown.names == OPERATORS
    assert set(shown.record.ops["phase"]) == {"forward"}
    bias, given, _ = map(shown.value, shown.op("addmm")["inputs"])
    assert (bias["role"], bias["slot"], given["role"]) == ("parameter", "first.bias", "input")
    expected = (x.double() @ net.first.weight.double().T + net.first.bias.double()).relu()
    assert shown.output("relu")["l2"] == pytest.approx(expected.norm().item(), rel=1e-6)
    assert "forward" in shown.functions("relu")


def test_a_training_step_has_its_phases():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)

    def step(x: torch.Tensor) -> None:
        net(x)[:, 0].sum().backward()
        optimizer.step()

    shown = Shown(magneton_dist.record(step, {"x": torch.ones(3, 6)}))
    phases = dict.fromkeys(shown.record.ops["phase"])
    assert next(iter(phases)) == "forward"
    assert {"forward", "backward", "optimizer"} <= phases.keys()
    updates = shown.record.ops.filter(phase="optimizer")["name"].to_list()
    assert updates == ["aten.add_.Tensor"] * 3  # one for each parameter


def test_dynamo_sees_the_same_graph_and_the_same_values():
    net, x = Net(), torch.randn(3, 6)
    with torch.no_grad():
        eager = Shown(magneton_dist.record(net, (x,)))
    traced = Shown(magneton_dist.record(net, (x,), framework="fx"))
    assert traced.names == OPERATORS
    for name in ("addmm", "relu", "mm", "_softmax"):
        assert same(eager.output(name), traced.output(name), rtol=1e-9)
        assert eager.output(name)["exact"] == traced.output(name)["exact"]
    slots = {shown.value(v)["slot"] for shown in (eager, traced) for v in shown.op("addmm")["inputs"]}
    assert slots == {"first.weight", "first.bias", None}
    assert traced.functions("relu") == ["forward"]


@torch._dynamo.config.patch(recompile_limit=1)
def test_dynamo_captures_a_function_again_and_again():
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    for n in range(3):  # more often than dynamo may compile it anew
        shown = Shown(magneton_dist.record(double, (torch.full((9,), float(n)),), framework="fx"))
        assert shown.names == ["add"]
        assert shown.output("add")["sum"] == 18.0 * n


def test_what_dynamo_cannot_capture_is_said():
    def peeks(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(InputError, match=r"peeks.*one graph.*framework=\"torch\""):
        magneton_dist.record(peeks, (torch.ones(3),), framework="fx")
    assert Shown(magneton_dist.record(peeks, (torch.ones(3),))).names == ["sum", "_local_scalar_dense"]


def test_an_error_of_the_callable_is_its_own():
    def fails(x: torch.Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        magneton_dist.record(fails, (torch.ones(3),))


def test_a_record_on_disk_is_a_run_of_one_rank(tmp_path):
    record = magneton_dist.record(Net(), (torch.ones(3, 6),), name="net", path=tmp_path / "net")
    assert validate(tmp_path / "net") == []
    run = magneton_dist.load(tmp_path / "net")
    assert (run.manifest.audit, run.manifest.variant, run.manifest.world_size) == ("net", "torch", 1)
    assert run.ranks[0].ops.equals(record.ops)
    assert run.ranks[0].fingerprints.equals(record.fingerprints)
    assert record.graph().number_of_nodes() == len(record.ops)
