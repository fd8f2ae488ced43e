"""A small model under DDP that decides in Python which operators it runs: CASE VARIANT. Prints nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, HEADS, STEPS = 128, 64, 4, 6


@dataclass
class Config:
    implementation: str
    verbose: bool


class Configured(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.config.verbose:  # differs, but runs no operator
            str(x.shape)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.config.implementation == "sdpa":  # decides
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return y.transpose(1, 2).flatten(-2)


class Weighing(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=self.weights)[0]


def main(case: str, variant: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    if case == "configured":
        model: nn.Module = Configured(Config("eager" if variant == "a" else "sdpa", verbose=variant == "a"))
    else:
        model = Weighing(variant == "a")
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, TOKENS, WIDTH, generator=data)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main(*sys.argv[1:])
