"""The same numbers have the same fingerprints, whoever computed them and in whatever layout."""

import os

import numpy as np
import pytest
import torch
from torch.nn import functional

import magneton_dist

from .conftest import Shown, same

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="jax is not installed: pip install 'magneton-dist[jax]'")


@pytest.fixture
def tf():
    extra = "tensorflow is not installed: pip install 'magneton-dist[tensorflow]'"
    return pytest.importorskip("tensorflow", reason=extra)


def in_torch(function, *arrays) -> Shown:
    return Shown(magneton_dist.record(function, [torch.from_numpy(a) for a in arrays], framework="torch"))


def in_jax(function, *arrays) -> Shown:
    return Shown(magneton_dist.record(function, arrays, framework="jax"))


def in_tensorflow(function, *arrays) -> Shown:
    return Shown(magneton_dist.record(function, arrays, framework="tensorflow"))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_attention_in_torch_and_jax(jax, rng):
    jnp = jax.numpy
    q, k, v = (normal(rng, 2, 3, 7, 8) for _ in range(3))  # batch, heads, tokens, width

    def ours(q, k, v):
        return (q @ k.mT * 8**-0.5).softmax(-1) @ v

    def theirs(q, k, v):  # batch, tokens, heads, width
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * 8**-0.5
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)

    a, b = in_torch(ours, q, k, v), in_jax(theirs, *(x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)))
    assert same(a.output("mul"), b.output("mul"))  # scaled scores
    assert same(a.output("_softmax"), b.output("div"))
    assert same(a.output("_unsafe_view", -1), b.output(b.names[-1], -1))
    assert not same(a.output("mul"), b.output("div"))


def test_convolution_in_torch_and_tensorflow(tf, rng):
    image, kernel = normal(rng, 2, 3, 9, 8), normal(rng, 5, 3, 3, 3)  # NCHW, OIHW

    def ours(image, kernel):
        return torch.relu(functional.conv2d(image, kernel, padding=1))

    def theirs(image, kernel):  # NHWC, HWIO
        return tf.nn.relu(tf.nn.conv2d(image, kernel, strides=1, padding="SAME"))

    a = in_torch(ours, image, kernel)
    b = in_tensorflow(theirs, image.transpose(0, 2, 3, 1).copy(), kernel.transpose(2, 3, 1, 0).copy())
    assert same(a.output("convolution"), b.output("Conv2D"))
    assert same(a.output("relu"), b.output("Relu"))
    for mine, other in zip(a.op("convolution")["inputs"], b.op("Conv2D")["inputs"], strict=True):
        assert a.fingerprints[mine]["exact"] == b.fingerprints[other]["exact"]  # the same bits, permuted


def test_integers_and_booleans_are_equal_whatever_their_width(jax, tf, rng):
    x = np.where(rng.random((6, 7)) < 0.5, 0, normal(rng, 6, 7)).astype(np.float32)
    nonzero = int((x != 0).sum())

    a = in_torch(lambda x: (x != 0).sum(), x)
    b = in_jax(jax.numpy.count_nonzero, x)
    c = in_tensorflow(tf.math.count_nonzero, x)
    masks = [a.output("ne"), b.output("ne"), c.output("NotEqual"), c.output("Cast")]
    assert len({mask["exact"] for mask in masks}) == 1
    counts = [a.output("sum"), b.output("reduce_sum"), c.output("Sum")]
    assert [count["sum"] for count in counts] == [nonzero] * 3
    assert len({count["exact"] for count in counts}) == 1


def test_bfloat16_in_torch_and_jax(jax, rng):
    x = normal(rng, 5, 6)
    a = in_torch(lambda x: x.bfloat16() * 2, x)
    b = in_jax(lambda x: x.astype(jax.numpy.bfloat16) * 2, x)
    assert a.value(a.op("mul")["outputs"][0])["dtype"] == b.value(b.op("mul")["outputs"][0])["dtype"] == "bfloat16"
    assert a.output("mul")["exact"] == b.output("mul")["exact"]
