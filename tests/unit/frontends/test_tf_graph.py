import json
import os

import numpy as np
import pytest

import magneton_dist
from magneton_dist.errors import InputError
from magneton_dist.records.validation import validate

from .conftest import Shown

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip(
    "tensorflow", reason="tensorflow is not installed: pip install 'magneton-dist[tensorflow]'"
)


def record(function, *inputs) -> Shown:
    return Shown(magneton_dist.record(function, inputs))


def test_the_operations_of_a_layer(rng, tmp_path):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 5)))
    weight, steps = tf.Variable(w, name="weight"), tf.Variable(2.0, name="steps", trainable=False)

    @tf.function
    def layer(x):
        return tf.tanh(tf.matmul(x, weight)) * steps

    record_ = magneton_dist.record(layer, (tf.constant(x),), path=tmp_path / "layer")
    shown = Shown(record_)
    assert record_.framework == "tensorflow"
    assert shown.names == ["MatMul", "Tanh", "Mul"]
    given, read = map(shown.value, shown.op("MatMul")["inputs"])
    assert (given["role"], read["role"], read["slot"]) == ("input", "parameter", "weight")
    count = shown.value(shown.op("Mul")["inputs"][1])
    assert (count["role"], count["slot"]) == ("buffer", "steps")
    expected = np.tanh(x.astype(np.float64) @ w)
    assert shown.output("Tanh")["l2"] == pytest.approx(np.sqrt((expected**2).sum()), rel=1e-6)
    assert shown.functions("Tanh")[0] == "layer"
    assert record_.ops["start_ns"].null_count() == 3  # the graph ran as a whole
    assert validate(tmp_path / "layer") == []


def test_functions_are_entered_and_control_flow_is_one_operator():
    inner = tf.function(lambda x: tf.sin(tf.cos(x)))

    def outer(x):
        y = inner(x)
        z = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.exp(y), lambda: y)
        return tf.while_loop(lambda s: tf.reduce_sum(s) < 100, lambda s: (s * 2,), (z,))

    names = record(outer, tf.ones(9)).names
    assert names == ["Cos", "Sin", "Sum", "Greater", "StatelessIf", "Identity", "StatelessWhile"]
    assert not tf.config.functions_run_eagerly()


def test_small_constants_are_arguments_and_large_ones_values():
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    shown = record(lambda x: tf.reduce_sum(x * tf.constant(table), axis=[0, 1]) * 0.5, tf.ones((10, 3)))
    assert shown.names == ["Mul", "Sum", "Mul"]
    assert [shown.value(v)["role"] for v in shown.op("Mul")["inputs"]] == ["input", "buffer"]
    assert json.loads(shown.op("Sum")["arguments"])[:2] == [{"v": shown.op("Mul")["outputs"][0]}, [0, 1]]
    assert json.loads(shown.op("Mul", 1)["arguments"])[1] == 0.5
    assert shown.output("Mul", 1)["sum"] == 435 / 2


def test_count_nonzero_compares_casts_and_sums():
    shown = record(tf.math.count_nonzero, tf.constant([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]))
    assert shown.names == ["NotEqual", "Cast", "Sum"]
    assert shown.output("Sum")["sum"] == 3.0
    assert [shown.value(shown.op(n)["outputs"][0])["dtype"] for n in shown.names] == ["bool", "int64", "int64"]


def test_gradients_are_the_backward_pass():
    weight = tf.Variable(np.ones((4, 2), np.float32))

    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.matmul(x, weight)))
        return tape.gradient(loss, weight)

    shown = record(gradient, tf.ones((3, 4)))
    backward = shown.record.ops.filter(phase="backward")["name"].to_list()
    assert backward[-2:] == ["tf.TanhGrad", "tf.MatMul"]
    assert shown.record.ops.filter(phase="forward")["name"].to_list() == ["tf.MatMul", "tf.Tanh", "tf.Sum"]


def test_types_without_numbers_are_left_out():
    def text(x):
        return tf.strings.as_string(x), tf.cast(x, tf.bfloat16)

    shown = record(text, tf.constant([0.5, 2.0]))
    assert shown.op("AsString")["outputs"] == []
    assert shown.output("Cast")["sum"] == 2.5


def test_python_that_decides_by_a_tensor_is_said():
    with pytest.raises(InputError, match=r"TensorFlow cannot trace it.*tf\.cond"):
        record(lambda x: x if tf.reduce_sum(x) > 0 else -x, tf.ones(3))
