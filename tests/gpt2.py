"""GPT-2, written so that the same function is computed in quite different ways.

`packed`: one product makes q, k and v (as transformers does), heads before tokens, [batch, tokens, width].
`split`: three products, tokens before heads, the residual stream flattened to [batch * tokens, width].
Weights are random; `copy_weights` gives one model those of another, `copy_from_transformers` those of a
GPT2LMHeadModel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes."""

    layers: int = 2
    width: int = 96
    heads: int = 6
    tokens: int = 40
    vocabulary: int = 211


class Block(nn.Module):
    def __init__(self, c: Config, layout: str, attention: str) -> None:
        super().__init__()
        self.heads, self.layout, self.attention = c.heads, layout, attention
        self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        if layout == "packed":
            self.qkv = nn.Linear(c.width, 3 * c.width)
        else:
            self.q, self.k, self.v = (nn.Linear(c.width, c.width) for _ in range(3))
        self.out = nn.Linear(c.width, c.width)
        self.up, self.down = nn.Linear(c.width, 4 * c.width), nn.Linear(4 * c.width, c.width)

    def forward(self, x: torch.Tensor, batch: int, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.attend(self.norm1(x), batch, mask))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def attend(self, x: torch.Tensor, batch: int, mask: torch.Tensor) -> torch.Tensor:
        tokens, width = mask.shape[0], x.shape[-1]
        each = (batch, tokens, self.heads, width // self.heads)
        if self.layout == "packed":
            q, k, v = (part.view(each).transpose(1, 2) for part in self.qkv(x).split(width, dim=-1))
        else:
            q, k, v = (linear(x).view(each) for linear in (self.q, self.k, self.v))
        if self.attention == "sdpa":
            if self.layout != "packed":
                q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            return y.reshape(x.shape)
        scale = 1 / math.sqrt(each[-1])
        hidden = torch.finfo(x.dtype).min
        if self.layout == "packed":
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, hidden)
            return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        scores = torch.einsum("bshd,bthd->bhst", q * scale, k).masked_fill(~mask, hidden)
        return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v).reshape(x.shape)


class Gpt2(nn.Module):
    def __init__(self, c: Config, layout: str = "packed", attention: str = "eager") -> None:
        super().__init__()
        self.config, self.layout = c, layout
        self.words, self.places = nn.Embedding(c.vocabulary, c.width), nn.Embedding(c.tokens, c.width)
        self.blocks = nn.ModuleList(Block(c, layout, attention) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of the next word."""
        batch, tokens = ids.shape
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        x = self.words(ids) + self.places(torch.arange(tokens))
        if self.layout == "split":
            x = x.reshape(batch * tokens, -1)
        for block in self.blocks:
            x = block(x, batch, mask)
        logits = functional.linear(self.norm(x), self.words.weight).view(batch, tokens, -1)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def fresh(
    c: Config, layout: str = "packed", attention: str = "eager", seed: int = 0, weights: str = "varied"
) -> Gpt2:
    """A model with random weights, the same for any layout and attention.

    Args:
        weights: "initial": as torch draws them, norms 1 and all biases of the norms 0; "varied": as after some
            training, biases and norms with noise of their own; "twins": varied, every layer like the first.
    """
    torch.manual_seed(seed)
    model = Gpt2(c, "packed", "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if weights == "initial":
                break
            if parameter.dim() == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
            elif "words" in name or "places" in name:
                parameter.mul_(0.3)
            else:
                parameter.mul_(2)
    if weights == "twins":
        for block in model.blocks[1:]:
            block.load_state_dict(model.blocks[0].state_dict())
    if (layout, attention) == ("packed", "eager"):
        return model
    other = Gpt2(c, layout, attention)
    copy_weights(other, {name: p.detach() for name, p in model.named_parameters()})
    return other


@torch.no_grad()
def copy_weights(model: Gpt2, packed: dict[str, torch.Tensor]) -> None:
    """Give `model` the weights of a packed one."""
    for name, parameter in model.named_parameters():
        if name in packed:
            parameter.copy_(packed[name])
            continue
        block, which, kind = name.rsplit(".", 2)  # blocks.0.q.weight
        parts = packed[f"{block}.qkv.{kind}"].chunk(3)
        parameter.copy_(parts["qkv".index(which)])


def transformers_model(c: Config, attention: str, seed: int = 0, weights: str = "varied") -> Any:
    """The same model by transformers: GPT2LMHeadModel without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=c.layers, n_embd=c.width, n_head=c.heads, n_positions=c.tokens, vocab_size=c.vocabulary,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attention, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    source = {name: p.detach() for name, p in fresh(c, seed=seed, weights=weights).named_parameters()}
    names = {
        "words": "transformer.wte", "places": "transformer.wpe", "norm": "transformer.ln_f",
        "norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }  # fmt: skip
    state = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in source.items():
            *block, which, kind = name.split(".")
            place = f"transformer.h.{block[1]}." if block else ""
            # transformers keeps the weights of its layers the other way round
            turned = weight.t() if which in ("qkv", "out", "up", "down") and kind == "weight" else weight
            state[f"{place}{names[which]}.{kind}"].copy_(turned)
    return model


def ids_of(c: Config, batch: int, seed: int = 1) -> torch.Tensor:
    """Random words, (batch, tokens)."""
    return torch.randint(c.vocabulary, (batch, c.tokens), generator=torch.Generator().manual_seed(seed))
