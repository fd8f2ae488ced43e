import json

import numpy as np
import pytest

import magneton_dist

from .conftest import Shown

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'magneton-dist[jax]'")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402


def record(function, *inputs) -> Shown:
    return Shown(magneton_dist.record(function, inputs))


def layer(x, w, b):
    return jnp.tanh(x @ w + b)


def test_the_equations_of_a_layer(rng):
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 5), (5,)))
    shown = record(layer, jnp.asarray(x), jnp.asarray(w), jnp.asarray(b))
    assert shown.record.framework == "jax"
    assert shown.names == ["dot_general", "broadcast_in_dim", "add", "tanh"]
    assert [shown.value(v)["role"] for v in shown.op("dot_general")["inputs"]] == ["input", "input"]
    assert shown.op("add")["inputs"] == shown.op("dot_general")["outputs"] + shown.op("broadcast_in_dim")["outputs"]
    expected = np.tanh(x.astype(np.float64) @ w + b)
    result = shown.output("tanh")
    assert (result["elements"], result["shape"]) == (15, [3, 5])
    assert result["sum"] == pytest.approx(expected.sum(), rel=1e-5)
    assert result["l2"] == pytest.approx(np.sqrt((expected**2).sum()), rel=1e-6)
    assert shown.functions("tanh")[0] == "layer"
    assert all(op["end_ns"] >= op["start_ns"] for op in shown.record.ops.iter_rows(named=True))


def test_called_functions_are_entered():
    @jax.custom_vjp
    def triple(x):
        return 3 * x

    triple.defvjp(lambda x: (triple(x), None), lambda _, g: (3 * g,))
    block = jax.checkpoint(lambda x: jnp.sin(triple(x)))
    shown = record(jax.jit(lambda x: jax.nn.relu(jax.jit(block)(x))), jnp.ones(9))
    # relu is a custom_jvp of a jit of max(x, 0)
    assert shown.names == ["mul", "sin", "max"]
    assert json.loads(shown.op("mul")["arguments"])[0] == 3.0
    assert shown.output("mul")["sum"] == 27.0


def test_of_a_cond_the_branch_that_is_taken_is_entered():
    def choose(n, x):
        return lax.switch(n, [jnp.sin, lambda x: jnp.cos(jnp.exp(x)), jnp.tan], x)

    def taken(n: int) -> list[str]:
        names = record(choose, n, jnp.ones(9)).names
        return [name for name in names if name not in ("convert_element_type", "clamp")]  # of the index

    assert taken(1) == ["exp", "cos"]
    assert taken(5) == ["tan"]


def test_a_short_scan_is_entered():
    def cumulate(xs):
        return lax.scan(lambda carry, x: (carry + x, carry * x), jnp.zeros(2), xs, reverse=True)

    shown = record(cumulate, jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert shown.names == ["broadcast_in_dim", *["select", "add", "mul"] * 3, "stack"]
    assert shown.output("select")["sum"] == 11.0  # from the end
    assert shown.output("add", 2)["sum"] == 21.0
    # carries before each: [8, 10], [5, 6], [0, 0]
    assert shown.output("stack")["sum"] == 8 * 1 + 10 * 2 + 5 * 3 + 6 * 4
    assert shown.value(shown.op("stack")["outputs"][0])["shape"] == [3, 2]


def test_a_long_scan_is_one_operator():
    shown = record(lambda x: lax.scan(lambda c, _: (c * 1.5 + x, None), x, length=200)[0], jnp.ones(9))
    assert shown.names == ["scan"]
    arguments = {a["name"]: a["value"] for a in json.loads(shown.op("scan")["arguments"]) if "name" in a}
    assert (arguments["length"], arguments["jaxpr"]) == (200, {"equations": 2})


def test_a_short_while_is_entered_and_a_long_one_is_one_operator():
    def halve(x):
        return lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (x, jnp.zeros(9)))

    # 8 -> 4 -> 2 -> 1: the condition four times, the body three times; // is a called function of its own
    names = record(halve, jnp.int32(8)).names
    assert (names.count("gt"), names.count("add")) == (4, 3)
    repeat = record(lambda n: lax.fori_loop(0, n, lambda _, s: s * 1.5, jnp.ones(9)), jnp.int32(200))
    assert repeat.names == ["broadcast_in_dim", "while"]


def test_gradients_are_the_backward_pass():
    shown = record(jax.grad(lambda w, x: (x @ w).sum()), jnp.ones((4, 2)), jnp.ones((3, 4)))
    phases = dict(zip(shown.names, shown.record.ops["phase"], strict=True))
    assert phases["reduce_sum"] == "forward"
    assert (phases["broadcast_in_dim"], phases["transpose"]) == ("backward", "backward")


def test_constants_keys_and_trees():
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)

    def noisy(tree, *, scale):
        return tree["x"] @ weights * scale + jax.random.uniform(tree["key"], (4,))

    inputs = {"tree": {"x": jnp.ones(3), "key": jax.random.key(0)}, "scale": 2.0}
    shown = Shown(magneton_dist.record(noisy, inputs))
    roles = [shown.value(v)["role"] for v in shown.op("dot_general")["inputs"]]
    assert sorted(roles) == ["buffer", "input"]
    assert shown.output("dot_general")["sum"] == 66.0
    key = shown.value(shown.op("random_bits")["inputs"][0])
    assert (key["dtype"], key["shape"]) == ("key<fry>", [2])


