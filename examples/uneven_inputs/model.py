"""A small GPT: pre-norm blocks, causal attention, learned positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.projection = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Returns the loss of predicting each next token.

    `zero_width` adds an auxiliary head of that width whose loss has the weight 0, as when a loss term is
    ablated: its parameters get gradients that are exactly zero, and DDP rightly reduces them.
    """

    def __init__(self, vocabulary: int, tokens: int, layers: int, dim: int, zero_width: int = 0) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads=max(1, dim // 64)) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.auxiliary = None
        if zero_width:
            self.auxiliary = nn.Sequential(nn.Linear(dim, zero_width), nn.Linear(zero_width, 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.blocks(self.token(tokens) + self.position))
        logits = self.head(hidden[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if self.auxiliary is not None:
            loss = loss + 0.0 * self.auxiliary(hidden.mean(1)).square().mean()
        return loss
