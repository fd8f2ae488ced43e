"""DistributedDataParallel sends a table of constants with every step: all ranks have it already."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("table", torch.randn(1000, 500))

    def forward(self, x):
        return self.b(self.a(x).relu()) + self.table[:1, :64]


model = DDP(Net())
opt = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
state = torch.ones(100_000)
for step in range(20):
    opt.zero_grad()
    state += dist.get_rank() * max(0, step - 2)  # equal until the first traced step, and never after it
    dist.broadcast(state, 0)
    x = torch.randn(64, 64)
    model(x).square().mean().backward()
    opt.step()
dist.destroy_process_group()
