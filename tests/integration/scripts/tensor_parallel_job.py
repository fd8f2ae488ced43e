"""Residual blocks of a column-parallel and a row-parallel linear layer, as Megatron-LM has them. Prints nothing.

    tensor_parallel_job.py STEPS {one-call|written-out}    how GELU is computed

Every rank is a shard: the degree of tensor parallelism is the number of ranks. Weights and data are those of the
whole model, whatever the degree.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, HIDDEN, LAYERS = 256, 64, 256, 2


class Copied(torch.autograd.Function):
    """Into the shards: the same forward, the sum over the shards' gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return summed(gradient)


class Reduced(torch.autograd.Function):
    """Out of the shards: their sum forward, the same gradient for each backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return summed(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def summed(x: Tensor) -> Tensor:
    if dist.get_world_size() > 1:
        x = x.contiguous()
        dist.all_reduce(x)
    return x


def written_out(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def shard(whole: Tensor, dim: int) -> nn.Parameter:
    return nn.Parameter(whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())


gelu = {"one-call": functional.gelu, "written-out": written_out}[sys.argv[2]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.column = shard(torch.randn(HIDDEN, WIDTH) / WIDTH**0.5, 0)
        self.row = shard(torch.randn(WIDTH, HIDDEN) / HIDDEN**0.5, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = gelu(functional.linear(Copied.apply(self.norm(x)), self.column))
        return x + Reduced.apply(functional.linear(hidden, self.row))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(TOKENS, WIDTH)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
