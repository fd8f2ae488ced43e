"""The four functions in torch: fused q/k/v, fused attention, heads before tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from arrays import FRAME, HEADS, HOP, WIDTH
from torch import Tensor


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
    y = F.layer_norm(x, (WIDTH,), norm_1, shift_1)
    qkv = y @ torch.cat([query, key, value], dim=1)
    q, k, v = qkv.view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, WIDTH)
    x = x + attended @ projection
    y = F.layer_norm(x, (WIDTH,), norm_2, shift_2)
    return x + F.gelu(y @ up, approximate="tanh") @ down


def stft(signal: Tensor, window: Tensor) -> Tensor:
    return torch.stft(signal, FRAME, HOP, window=window, center=False, return_complex=True)


def expm(a: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(a)


def count_nonzero(x: Tensor) -> Tensor:
    return torch.count_nonzero(x, dim=(0, 1))
