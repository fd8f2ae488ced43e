import json
import subprocess
import sys

import pytest
import torch

import magneton_dist
from magneton_dist.errors import InputError

from .conftest import Shown


@magneton_dist.annotate("gate", inputs=("x",), outputs=("gated",))
def gate(x, weight, *, power=1.0):
    """A swish with a power."""
    return x * torch.sigmoid(weight * x) ** power


def named(op: dict[str, object]) -> dict[str, int]:
    return {a["name"]: (a.get("value") or a["output"])["v"] for a in json.loads(op["arguments"])}


@pytest.mark.parametrize("framework", ["torch", "fx"])
def test_a_function_is_one_operator(framework):
    weight = torch.full((4,), 2.0)
    shown = Shown(magneton_dist.record(lambda x: gate(x + 1, weight).exp(), (torch.ones(3, 4),), framework=framework))
    assert shown.names == ["add", "gate", "exp"]
    given, result = shown.op("add")["outputs"], shown.op("exp")["inputs"]
    op = shown.op("gate")
    assert named(op) == {"x": given[0], "gated": result[0]}
    assert op["inputs"][0] == given[0]
    (also_read,) = op["inputs"][1:]  # the weight is read, but was not named
    assert shown.value(also_read)["shape"] == [4]
    assert op["outputs"] == result


def test_a_function_stays_what_it_is():
    x, weight = torch.ones(3), torch.zeros(3)
    assert gate(x, weight, power=2.0).tolist() == [0.25] * 3
    assert (gate.__name__, gate.__doc__) == ("gate", "A swish with a power.")


def test_the_backward_pass_reads_what_the_operator_kept():
    def step(x):
        gate(x, x).sum().backward()

    shown = Shown(magneton_dist.record(step, (torch.ones(8, requires_grad=True),)))
    assert shown.names[:2] == ["gate", "sum"]
    kept = [v for op in shown.record.ops.filter(phase="backward")["inputs"] for v in op]
    made = shown.op("gate")["outputs"]
    assert len(made) > 1  # besides the result, what autograd saved
    assert set(made[1:]) <= set(kept)


def test_a_block_names_what_it_returns_and_shows_what_it_wrote():
    cache = torch.zeros(2, 9)

    def fill(x):
        with magneton_dist.annotate("fill", inputs={"x": x, "more": {"a": [x]}}) as block:
            cache[0].add_(x)
            total = cache + 1
            block.returns(total=total)
        return total * 2

    shown = Shown(magneton_dist.record(fill, (torch.ones(9),)))
    assert shown.names == ["fill", "mul"]
    op = shown.op("fill")
    assert list(named(op)) == ["x", "more.a.0", "total"]
    written = [shown.value(v) for v in op["outputs"][1:]]
    assert [value["role"] for value in written] == ["input"] * len(written)  # the cache, not the temporaries
    assert {value["version"] for value in written} == {1}


def test_the_outermost_counts_and_an_error_closes_it():
    @magneton_dist.annotate("outer")
    def outer(*xs):
        return [gate(x, x) for x in xs]

    @magneton_dist.annotate("fails")
    def fails(x):
        x + 1
        raise ValueError

    def both(x):
        with pytest.raises(ValueError):  # noqa: PT011
            fails(x)
        return outer(x, x)[0].exp()

    shown = Shown(magneton_dist.record(both, (torch.ones(9),)))
    assert shown.names == ["fails", "outer", "exp"]
    assert [a["name"] for a in json.loads(shown.op("outer")["arguments"])] == ["xs.0", "xs.1", "output.0", "output.1"]


@pytest.mark.parametrize(
    ("name", "inputs", "match"),
    [
        ("", None, "needs a name"),
        ("f", ("y",), "no argument 'y'.*name some of x"),
        ("f", "query", r"inputs is one string.*give a tuple: \('query',\)"),
    ],
)
def test_a_wrong_annotation_is_an_input_error(name, inputs, match):
    with pytest.raises(InputError, match=match):
        magneton_dist.annotate(name, inputs=inputs)(lambda x: x)


@pytest.mark.parametrize("outputs", [("value", "index"), ()])
def test_names_of_more_or_fewer_outputs_than_there_are_are_warned_of(outputs):
    double = magneton_dist.annotate("double", outputs=outputs)(lambda x: x * 2)
    with pytest.warns(UserWarning, match=rf"names {len(outputs)} outputs of a function that returns 1"):
        recorded = magneton_dist.record(double, (torch.ones(9),))
    assert Shown(recorded).names == ["double"]


def test_it_makes_no_mark_where_nothing_records(monkeypatch):
    from magneton_dist.tracer import annotate

    monkeypatch.setattr(annotate, "_mark", lambda *_: pytest.fail("marked"))
    assert gate(torch.ones(2), torch.zeros(2)).tolist() == [0.5, 0.5]


def test_it_needs_torch_and_the_standard_library_only():
    heavy = ("polars", "numpy.linalg._linalg", "networkx", "msgspec", "pydantic", "ray")
    code = (
        "import sys, torch; before = set(sys.modules); import magneton_dist; magneton_dist.annotate('x'); "
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
