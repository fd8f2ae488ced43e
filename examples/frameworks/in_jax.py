"""The four functions in JAX: q, k and v apart, tokens before heads, attention spelled out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from arrays import FRAME, HEADS, HOP, WIDTH
from jax import Array


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


@jax.jit
def block(
    x: Array,
    norm_1: Array,
    shift_1: Array,
    query: Array,
    key: Array,
    value: Array,
    projection: Array,
    norm_2: Array,
    shift_2: Array,
    up: Array,
    down: Array,
) -> Array:
    batch, tokens, _ = x.shape
    y = layer_norm(x, norm_1, shift_1)
    q, k, v = ((y @ w).reshape(batch, tokens, HEADS, WIDTH // HEADS) for w in (query, key, value))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * (WIDTH // HEADS) ** -0.5
    attended = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    x = x + attended.reshape(batch, tokens, WIDTH) @ projection
    y = layer_norm(x, norm_2, shift_2)
    return x + jax.nn.gelu(y @ up, approximate=True) @ down


def stft(signal: Array, window: Array) -> Array:
    settings = {"nperseg": FRAME, "noverlap": FRAME - HOP, "boundary": None, "padded": False}
    *_, spectrum = jax.scipy.signal.stft(signal, window=window, **settings)
    return spectrum * window.sum()  # SciPy's convention divides by it


def expm(a: Array) -> Array:
    return jax.scipy.linalg.expm(a)


def count_nonzero(x: Array) -> Array:
    return jnp.count_nonzero(x)
