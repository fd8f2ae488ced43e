from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

from magneton_dist.diagnosis.branches import Branch, branch
from magneton_dist.diagnosis.frames import Frame
from magneton_dist.diagnosis.lines import Recorder

SOURCE = Path(__file__).read_text().splitlines()
X = torch.ones(2, 4, 8)


def line_of(text: str) -> int:
    """Number of the line of this file that ends with a comment `text`."""
    (number,) = [n for n, line in enumerate(SOURCE, start=1) if line.endswith(f"# {text}")]
    return number


class Attention(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        fused = config.implementation == "sdpa"
        self.fused = fused

    def forward(self, x: Tensor, log: bool = False) -> Tensor:
        if log:
            str(x.shape)
        fast = self.fused and x.dim() == 3
        if fast:  # the attention's condition
            return functional.scaled_dot_product_attention(x, x, x)
        return (x @ x.mT).softmax(-1) @ x


class Block(nn.Module):
    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attend(x, x, x, need_weights=self.weights)
        return y


def by_table(kind: str) -> Tensor:
    chosen = {"a": torch.sin, "b": torch.cos}[kind]
    return written_twice(chosen)


def written_twice(chosen: Callable[[Tensor], Tensor]) -> Tensor:
    return chosen(X)  # the table's condition


class Dispatching(nn.Module):
    """Chooses a function by its configuration, as transformers does."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + 1
        attend: Callable[[Tensor], Tensor] = INTERFACES.get(
            self.config.implementation, eager
        )
        return attend(x)  # the dispatch


def eager(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


def sdpa(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


INTERFACES = {"sdpa": sdpa}


def run(make: Callable[[], object]) -> None:
    make()  # the statement


def recorded(
    make: Callable[[], object], path: Path, function: str = "run", statement: str = "the statement"
) -> Frame:
    recorder = Recorder(__file__, function, line_of(statement), None, str(path))
    before = sys.gettrace()
    sys.settrace(recorder.entered)
    try:
        run(make)
    finally:
        sys.settrace(before)
    return Frame.of(json.loads(path.read_text()))


def parted(a: Callable[[], object], b: Callable[[], object], folder: Path) -> Branch | None:
    return branch(recorded(a, folder / "a"), recorded(b, folder / "b"))


def test_a_condition_is_followed_to_the_configuration(tmp_path: Path) -> None:
    eager, fused = (Attention(SimpleNamespace(implementation=name)) for name in ("eager", "sdpa"))
    # that one of them logs runs no other operators
    found = parted(lambda: eager(X, log=True), lambda: fused(X), tmp_path)
    assert found is not None
    assert found.place == f"{__file__}:{line_of('the attention' + chr(39) + 's condition')} forward"
    assert found.condition == "fast"
    assert [(reading.text, reading.values) for reading in found.chain] == [
        ("fast", ("False", "True")), ("self.fused", ("False", "True")),
    ]  # fmt: skip
    assert found.origin.endswith("self.fused = fused, from config.implementation (argument of __init__)")


def test_an_argument_is_followed_through_torch_to_who_hands_it_over(tmp_path: Path) -> None:
    one, other = Block(weights=True), Block(weights=False)
    found = parted(lambda: one(X), lambda: other(X), tmp_path)
    assert found is not None
    file, _, rest = found.place.rpartition(":")
    assert file == functional.__file__
    assert rest.endswith(" multi_head_attention_forward")
    assert found.condition == "need_weights"
    assert [reading.text for reading in found.chain][-1] == "self.weights"
    assert found.chain[0].values == ("True", "False")
    assert "self.weights = weights, from weights (argument of __init__)" in found.origin


def test_a_function_that_was_chosen_is_followed(tmp_path: Path) -> None:
    found = parted(lambda: by_table("a"), lambda: by_table("b"), tmp_path)
    assert found is not None
    assert found.place.endswith(f":{line_of('the table' + chr(39) + 's condition')} written_twice")
    assert [reading.text for reading in found.chain] == ["chosen", "chosen", "kind"]


def test_what_a_statement_calls_is_followed_to_the_lines_before_it(tmp_path: Path) -> None:
    modules = {name: Dispatching(SimpleNamespace(implementation=name)) for name in ("eager", "sdpa")}
    one, other = (
        recorded(partial(module, X), tmp_path / name, "forward", "the dispatch") for name, module in modules.items()
    )
    found = branch(one, other)
    assert found is not None
    assert found.place.endswith(f":{line_of('the dispatch')} forward")
    assert [(reading.text, reading.values) for reading in found.chain][1:] == [
        ("self.config.implementation", ("'eager'", "'sdpa'"))
    ]
    assert found.chain[0].text == "attend"
    assert "self.config = config, from config (argument of __init__)" in found.origin


def test_foreach_is_followed_to_the_optimizers_group(tmp_path: Path) -> None:
    def stepper(foreach: bool) -> Callable[[], object]:
        parameters = [nn.Parameter(torch.ones(4)) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.ones(4)
        return torch.optim.AdamW(parameters, foreach=foreach).step

    found = parted(stepper(True), stepper(False), tmp_path)
    assert found is not None
    assert found.condition.startswith("func(")
    assert "foreach" in [reading.text for reading in found.chain]
    assert found.chain[-1].text == "group['foreach']"
    assert found.chain[-1].values == ("True", "False")


def test_the_same_lines_do_not_part(tmp_path: Path) -> None:
    eager = Attention(SimpleNamespace(implementation="eager"))
    assert parted(lambda: eager(X, log=True), lambda: eager(X), tmp_path) is None


def by_token(api_token: str) -> Tensor:
    return torch.sin(X) if api_token == "one" else torch.cos(X)


def test_no_secret_is_told(tmp_path: Path) -> None:
    found = parted(lambda: by_token("one"), lambda: by_token("two"), tmp_path)
    assert found is not None
    assert found.chain[0].text == "api_token"
    assert found.chain[0].values == ("(withheld)", "(withheld)")
    planted = "hf_" + "aB3dE5gH7jK9mN1p"
    assert planted not in repr(parted(lambda: by_table("a"), lambda: by_token(planted), tmp_path))
