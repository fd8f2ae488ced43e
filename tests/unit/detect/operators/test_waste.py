"""Programs with operators that do nothing for them, counted by hand, and programs without any."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .recorded import names


class Trained:
    """A layer, data and an optimizer; `step` trains it on the loss that `forward` returns."""

    def __init__(self, forward):
        torch.manual_seed(0)
        self.layer, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
        self.x = torch.randn(128, 64)
        self.forward = forward
        parameters = [*self.layer.parameters(), *self.other.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
        self.held: list[torch.Tensor] = []

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.forward(self).square().mean().backward()
        self.optimizer.step()


def waste(forward) -> dict[str, list[str]]:
    return names(Trained(forward))


def test_a_clean_step_has_no_waste():
    assert waste(lambda t: t.other(functional.gelu(t.layer(t.x)))) == {}


def test_the_same_layer_on_the_same_input_twice():
    def forward(t: Trained):
        return t.other(t.layer(t.x).relu() + t.layer(t.x).relu())

    # the second addmm and relu; backward, the gradients of both relus, and of both products
    found = waste(forward)
    assert found["redundant-op"][:2] == ["addmm", "relu"]
    assert sorted(found["redundant-op"][2:]) == ["mm", "sum", "threshold_backward"]
    assert found.keys() == {"redundant-op"}


def test_layers_that_start_out_equal_are_not_the_same():
    def forward(t: Trained):
        return t.layer(t.x) * t.other(t.x)

    job = Trained(forward)
    job.other.load_state_dict(job.layer.state_dict())
    job.optimizer.param_groups[0]["lr"] = 0.0
    assert names(job) == {}


def test_random_operators_are_not_the_same():
    assert waste(lambda t: functional.dropout(t.layer(t.x)) + functional.dropout(t.layer(t.x))) == {
        "redundant-op": ["addmm"]
    }


def test_a_result_that_is_changed_in_place_is_needed_twice():
    def forward(t: Trained):
        with torch.no_grad():
            one, other = t.x.exp(), t.x.exp()
            one.add_(1)
        return t.layer(one) + t.other(other)

    assert waste(forward) == {}


def test_copies_of_one_input_are_one_input():
    def forward(t: Trained):
        with torch.no_grad():
            one, other = t.x.clone().exp(), t.x.exp()
        return t.layer(one) + t.other(other)

    assert waste(forward) == {"redundant-op": ["exp"], "useless-copy": ["clone"]}


def test_operators_whose_results_nobody_reads():
    def forward(t: Trained):
        unused = torch.softmax(t.layer(t.x), -1) * 2
        del unused
        return t.other(t.x)

    # the product goes with what reads it
    assert waste(forward) == {"dead-op": ["addmm", "_softmax", "mul"]}


def test_what_is_still_held_at_the_end_may_be_read():
    def forward(t: Trained):
        t.held = [torch.softmax(t.layer(t.x), -1) * 2]
        return t.other(t.x)

    assert waste(forward) == {}


def test_numbers_that_python_may_have_read_are_not_dead():
    def forward(t: Trained):
        y = t.layer(t.x)
        (y * 2).detach().numpy().sum()
        y.argmax(-1).tolist()
        return t.other(y)

    def monitored(t: Trained):
        y = t.layer(t.x)
        float((y * 2).sum())  # through an operator
        return t.other(y)

    assert waste(forward) == {}
    assert waste(monitored) == {}


def test_a_step_that_does_not_train_is_there_for_its_results():
    layer, x = nn.Linear(64, 64), torch.randn(128, 64)

    def step() -> None:
        with torch.no_grad():
            layer(x).softmax(-1)

    assert names(step) == {}


def test_a_copy_is_useless_when_neither_it_nor_its_source_changes():
    assert waste(lambda t: t.other(t.layer(t.x).clone())) == {"useless-copy": ["clone"]}


@pytest.mark.parametrize(
    "forward",
    [
        lambda t: t.other(t.layer(t.x).clone().add_(1)),  # the copy is written
        lambda t: t.other(t.layer(t.x)[:64].clone()),  # a part
        lambda t: t.other(t.layer(t.x).t().contiguous().t()),  # another layout
        lambda t: t.other(t.layer(t.x).double().float()),  # other dtypes
    ],
)
def test_copies_that_are_needed(forward):
    assert "useless-copy" not in waste(forward)


def test_a_copy_of_what_is_written_afterwards_is_needed():
    def forward(t: Trained):
        with torch.no_grad():
            y = t.layer(t.x)
            before = y.clone()
            y.mul_(2)
        return t.other(y) + t.other(before)

    assert waste(forward) == {}


def test_checkpointing_trades_computation_for_memory():
    def forward(t: Trained):
        def part(x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(functional.gelu(t.layer(x)), 0.1).tanh()

        return t.other(checkpoint(part, t.x, use_reentrant=False))

    found = waste(forward)
    # the same random numbers too, and no gradients
    assert found.keys() == {"recomputed"}
    assert found["recomputed"][:2] == ["addmm", "gelu"]
    assert not any("backward" in name or name == "mm" for name in found["recomputed"])


def test_a_call_that_makes_needed_results_too_cannot_be_left_out():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(32, 64, 2, batch_first=True), torch.randn(4, 20, 32)
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        lstm(x)[0].square().mean().backward()  # the last states are read by nobody
        optimizer.step()

    assert names(step) == {}


def test_both_terms_of_a_sum_have_the_same_gradient():
    assert waste(lambda t: t.other(t.x) + t.other(t.layer(t.x))) == {}
