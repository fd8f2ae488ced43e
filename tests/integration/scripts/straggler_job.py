"""A small model under DDP whose rank 1 keeps rank 0 waiting: ``stall``, ``loader`` or ``data``. Units are told."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import magneton_dist

WHY, STEPS, ROWS, NAP_S = sys.argv[1], 30, 600, 0.15

torch.manual_seed(0)
dist.init_process_group("gloo")
late = dist.get_rank() == 1
rows = ROWS * (8 if late and WHY == "data" else 1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """One batch each, which takes a nap on the late rank."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if late and WHY == "loader":
            time.sleep(NAP_S)
        return torch.randn(rows, 256)


for batch in torch.utils.data.DataLoader(Samples(), batch_size=None):
    if late and WHY == "stall":
        time.sleep(NAP_S)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    magneton_dist.step(samples=rows)
dist.destroy_process_group()
