"""Two ranks with other data: DDP, and a functional all-reduce that is waited for."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 10))
model = DistributedDataParallel(net, bucket_cap_mb=0.002)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
torch.manual_seed(1 + dist.get_rank())
for _ in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(40, 20)).square().mean()
    loss.backward()
    total = collectives.all_reduce(loss.detach().expand(16).clone(), "sum", dist.group.WORLD)
    (total * 2).sum()
    optimizer.step()
dist.destroy_process_group()
