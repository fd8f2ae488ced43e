"""The arrays that all three frameworks get."""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]

TOKENS, WIDTH, HEADS = 24, 64, 4
FRAME, HOP = 128, 32


def block(seed: int = 0) -> Arrays:
    """An input, shape (2, TOKENS, WIDTH), and the weights of a transformer block; matrices are (in, out)."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    return {
        "x": rng.standard_normal((2, TOKENS, WIDTH)).astype(np.float32),
        "norm_1": 1 + 0.1 * normal(WIDTH),
        "shift_1": 0.1 * normal(WIDTH),
        "query": normal(WIDTH, WIDTH),
        "key": normal(WIDTH, WIDTH),
        "value": normal(WIDTH, WIDTH),
        "projection": normal(WIDTH, WIDTH),
        "norm_2": 1 + 0.1 * normal(WIDTH),
        "shift_2": 0.1 * normal(WIDTH),
        "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH),
    }


def stft(seed: int = 0) -> Arrays:
    """A signal of 0.1 s at 16 kHz and a Hann window."""
    rng = np.random.default_rng(seed)
    window = np.hanning(FRAME + 1)[:-1]
    return {"signal": rng.standard_normal(1600).astype(np.float32), "window": window.astype(np.float32)}


def expm(seed: int = 0) -> Arrays:
    """A square matrix whose 1-norm calls for the Padé approximant of order 7 in single precision."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((16, 16))
    return {"a": (2.5 * a / np.abs(a).sum(0).max()).astype(np.float32)}


def count_nonzero(seed: int = 0) -> Arrays:
    """Half zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((32, 48))
    return {"x": np.where(rng.random(x.shape) < 0.5, 0, x).astype(np.float32)}
