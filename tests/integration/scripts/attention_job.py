"""A small model under DDP whose attention is written out, or one call. Prints nothing."""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, HEADS, LAYERS = 192, 64, 8, 2


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def one_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


class Block(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        self.attend = {"eager": written_out, "sdpa": one_call}[attention]
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        each = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part.view(each).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = self.attend(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Block(sys.argv[1]) for _ in range(LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(int(sys.argv[2])):
        optimizer.zero_grad()
        loss = model(torch.randn(4, TOKENS, WIDTH, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
