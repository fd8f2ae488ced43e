"""Train many small matrices with DDP and AdamW: a loop over parameters, lists of them, or one fused kernel.

    torchrun --nproc_per_node 2 examples/adamw/train.py --adamw fused

All three compute the same update. With so many parameters a step is mostly the optimizer's.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

try:
    from magneton_dist import step as audit_step  # optional: tells an audit how many samples a step had
except ImportError:

    def audit_step(**units: float) -> None:
        pass


# torch's default for parameters on a GPU is `foreach`, on a CPU `loop`
ADAMW = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--adamw", choices=tuple(ADAMW), default="loop")
    add("--layers", type=int, default=32)
    add("--width", type=int, default=64)
    add("--batch", type=int, default=16)
    add("--steps", type=int, default=60)
    add("--seed", type=int, default=0)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser.parse_args()


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


def main() -> None:
    args = parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(args.seed)
    layers = nn.Sequential(*(Residual(args.width) for _ in range(args.layers))).to(device)
    model = DDP(layers, device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **ADAMW[args.adamw])
    generator = torch.Generator().manual_seed(1000 * args.seed + rank)
    loss = torch.tensor(float("nan"))
    start = time.monotonic()
    for _ in range(args.steps):
        x = torch.randn(args.batch, args.width, generator=generator).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        audit_step(samples=args.batch)
    seconds = time.monotonic() - start
    print(f"rank {rank}: {args.steps} steps, {seconds:.2f} s, loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
