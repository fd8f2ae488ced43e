"""Uneven batches under Join: by another name, through a helper, entered by an exit stack."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join as Together
from torch.nn.parallel import DistributedDataParallel

BATCHES = (9, 13)


def unevenly(joinables):
    """A user's helper that hides the class."""
    return Together(joinables)


def train(model, optimizer, batches):
    for _ in range(batches):
        model(torch.ones(4, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(way):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    # 2 buckets once they have been rebuilt: 1 MB holds one of the weights
    network = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False))
    model = DistributedDataParallel(network, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "helper":
        with unevenly([model]):
            train(model, optimizer, BATCHES[rank])
    elif way == "stack":
        with contextlib.ExitStack() as stack:
            stack.enter_context(Together([model]))
            train(model, optimizer, BATCHES[rank])
    elif way == "model":
        with model.join():
            train(model, optimizer, BATCHES[rank])
    elif way == "even":
        with Together([model], enable=False):
            train(model, optimizer, BATCHES[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
