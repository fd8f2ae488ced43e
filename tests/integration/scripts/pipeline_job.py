"""Two stages of a pipeline, one a rank: activations go forward, their gradients back. Prints nothing.

    pipeline_job.py STEPS {one-call|written-out}    how GELU is computed
"""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, LAYERS = 256, 64, (2, 3)  # of each stage


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gelu(self.up(self.norm(x))))


def written_out(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


gelu = {"one-call": functional.gelu, "written-out": written_out}[sys.argv[2]]


def first(stage: nn.Module) -> None:
    y = stage(torch.randn(TOKENS, WIDTH))
    dist.send(y.detach(), 1)
    gradient = torch.empty_like(y)
    dist.recv(gradient, 1)
    y.backward(gradient)


def last(stage: nn.Module) -> None:
    x = torch.empty(TOKENS, WIDTH)
    dist.recv(x, 0)
    stage(x.requires_grad_()).square().mean().backward()
    assert x.grad is not None
    dist.send(x.grad, 0)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Sequential(*(Block() for _ in range(LAYERS[rank])))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        (first, last)[rank](stage)
        optimizer.step()
    dist.destroy_process_group()


main()
