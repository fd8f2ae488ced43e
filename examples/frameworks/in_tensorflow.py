"""The four functions in TensorFlow: one matrix for q, k and v, attention spelled out, heads before tokens."""

from __future__ import annotations

import tensorflow as tf
from arrays import FRAME, HEADS, HOP, WIDTH
from tensorflow import Tensor


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)


@tf.function
def block(
    x: Tensor,
    norm_1: Tensor,
    shift_1: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projection: Tensor,
    norm_2: Tensor,
    shift_2: Tensor,
    up: Tensor,
    down: Tensor,
) -> Tensor:
    batch, tokens, _ = x.shape
    y = layer_norm(x, norm_1, shift_1)
    qkv = tf.reshape(tf.matmul(y, tf.concat([query, key, value], axis=1)), [batch, tokens, 3, HEADS, WIDTH // HEADS])
    q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))
    scores = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5
    attended = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
    x = x + tf.matmul(tf.reshape(attended, [batch, tokens, WIDTH]), projection)
    y = layer_norm(x, norm_2, shift_2)
    return x + tf.matmul(tf.nn.gelu(tf.matmul(y, up), approximate=True), down)


def stft(signal: Tensor, window: Tensor) -> Tensor:
    return tf.signal.stft(signal, FRAME, HOP, window_fn=lambda *_, **__: window)


def expm(a: Tensor) -> Tensor:
    return tf.linalg.expm(a)


def count_nonzero(x: Tensor) -> Tensor:
    return tf.math.count_nonzero(x)
