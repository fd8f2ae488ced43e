"""The same model and data under DDP, or with its parameters sharded (FSDP2). Prints nothing.

    sharding_job.py STEPS {ddp|fsdp}
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ROWS, WIDTH = 64, 64


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model: nn.Module = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip
    if sys.argv[2] == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), reshard_after_forward=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(int(sys.argv[1])):
        x = torch.randn(ROWS, WIDTH, generator=data)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
