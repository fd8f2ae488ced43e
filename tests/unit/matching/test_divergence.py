"""Two runs that part, recorded for real: where, and why."""

from collections.abc import Callable

import polars as pl
import pytest
import torch
from recorded_steps import Tables, record
from torch import nn
from torch.nn import functional

from magneton_dist.matching.divergence import Divergence
from magneton_dist.matching.records import match_records


class Net(nn.Module):
    def __init__(self, seed: int, dropout: float, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.third = nn.Linear(24, 40), nn.Linear(40, 40), nn.Linear(40, 5)
        self.dropout, self.activation = dropout, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(self.first(x))
        if self.dropout:
            y = functional.dropout(y, self.dropout, training=True)
        return self.third(self.activation(self.second(y))).square().sum()


def run(
    weights: int = 0,
    data: int = 0,
    rows: int = 30,
    dropout: float = 0.0,
    noise: int = 0,
    activation: Callable[[torch.Tensor], torch.Tensor] = functional.gelu,
) -> Tables:
    net = Net(weights, dropout, activation)
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(data))
    torch.manual_seed(noise)
    return record(lambda: net(x).backward())


@pytest.fixture(scope="module")
def reference() -> Tables:
    return run()


def part(a: Tables, b: Tables) -> Divergence:
    (found,) = match_records(a, b).divergences()
    return found


def name_of(tables: Tables, op_id: int | None) -> str:
    return str(tables["ops"].filter(tables["ops"]["op_id"] == op_id)["name"].item())


def test_equal_runs_do_not_part(reference):
    assert match_records(reference, run()).divergences() == []


def test_other_weights(reference):
    found = part(reference, run(weights=1))
    assert found.reason == "parameters"
    assert found.share > 0.9
    assert "first.weight is read: 5 of 5 parameters have other values" in found.text
    assert name_of(reference, found.op_a) == "aten.t.default"


def test_other_data(reference):
    found = part(reference, run(data=1))
    assert found.reason == "data"
    assert found.text.endswith("which reads other data")
    assert name_of(reference, found.op_a) == "aten.addmm.default"


def test_data_of_other_sizes(reference):
    found = part(reference, run(rows=20))
    assert found.reason == "data"
    assert "[30, 24], [20, 24]" in found.text


def test_dropout_with_other_random_numbers():
    a, b = run(dropout=0.2, noise=1), run(dropout=0.2, noise=2)
    found = part(a, b)
    assert found.reason == "random"
    assert name_of(a, found.op_a) == "aten.bernoulli_.float"
    assert "give both runs one seed" in found.text
    assert match_records(a, run(dropout=0.2, noise=1)).divergences() == []


def test_what_another_run_left_in_new_memory_is_no_value():
    """The memory for b's mask may hold a's, which must not be taken for the mask."""
    a, b = run(dropout=0.2, noise=1), run(dropout=0.2, noise=2)
    (new,), (mask,) = (
        tables["ops"].filter(pl.col("name") == name)["outputs"].item()
        for tables, name in ((b, "aten.empty_like.default"), (a, "aten.bernoulli_.float"))
    )
    left, kept = (table["fingerprints"] for table in (a, b))
    same = left.filter(pl.col("values").list.contains(mask)).with_columns(pl.lit([new]).alias("values"))
    b["fingerprints"] = pl.concat([kept.filter(~pl.col("values").list.contains(new)), same])
    for one, other in ((a, b), (b, a)):
        found = part(one, other)
        assert (found.reason, name_of(one, found.op_a)) == ("random", "aten.bernoulli_.float")


def test_dropout_on_one_side_only(reference):
    dropped = run(dropout=0.2)
    assert part(dropped, reference).reason == "random"
    found = part(reference, dropped)
    assert (found.reason, found.op_a) == ("random", None)
    assert name_of(dropped, found.op_b) == "aten.bernoulli_.float"
    assert "of the second run" in found.text


def test_another_function_of_the_same_inputs(reference):
    other = run(activation=functional.silu)
    found = part(reference, other)
    assert found.reason == "computation"
    assert name_of(reference, found.op_a) == "aten.gelu.default"
    assert name_of(other, found.op_b) == "aten.silu.default"


def test_values_that_are_almost_equal(reference):
    found = part(reference, run(activation=lambda x: functional.gelu(x) * 1.005))
    assert found.reason == "rounding"
    assert "differs by 0.00" in found.text
    assert "tolerance of 0.001" in found.text


def test_dropout_inside_of_attention():
    def attention(seed: int) -> Tables:
        q, k, v = (torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
        torch.manual_seed(seed)
        return record(lambda: functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3).exp())

    found = part(attention(1), attention(2))
    assert found.reason == "random"


def test_lower_precision_beyond_the_tolerance():
    """One side computes in a narrower type: said when it is the type that differs."""

    def call(dtype: torch.dtype) -> Tables:
        torch.manual_seed(0)
        x, w = torch.randn(30, 200), torch.randn(200, 40)

        def step() -> torch.Tensor:
            y = (x.to(dtype) @ w.to(dtype)).exp().to(torch.float32)
            return (y * y).exp().sum(0)

        return record(step)

    divergences = match_records(call(torch.float32), call(torch.float16), eps=1e-5).divergences()
    assert divergences[0].reason == "precision"
    assert "float32 against float16" in divergences[0].text
