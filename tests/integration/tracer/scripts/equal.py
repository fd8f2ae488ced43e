"""Trains in every way that the tracer must leave alone; says what came out, to the bit."""

import functools
import hashlib
import json
import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 5


class Numbers(Dataset):
    """Says with every item whether its process has a tracer."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        bootstrap = sys.modules.get("magneton_dist.tracer.bootstrap")
        traced = bootstrap is not None and bootstrap._session is not None
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), traced, os.getpid()


def say(*results):
    # in one piece: both ranks write to the same pipe
    sys.stdout.write(f"RESULT {json.dumps([dist.get_rank(), *results])}\n")


def network():
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))


def batch(step):
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 10 + dist.get_rank()))


def train(model, optimizer, steps=STEPS, call=None):
    for step in range(steps):
        (model if call is None else call)(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def digest(*modules):
    found = hashlib.sha256()
    for module in modules:
        for tensor in module.state_dict().values():
            tensor = getattr(tensor, "_local_tensor", tensor)
            found.update(tensor.detach().contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()


def compiled(case):
    """Forward of a DDP model, a plain function, and the optimizer's step, each compiled."""
    calls = {"graphs": 0, "runs": 0}

    def backend(graph, inputs):
        calls["graphs"] += 1
        run = lookup_backend("aot_eager")(graph, inputs)

        def counted(*args):
            calls["runs"] += 1
            return run(*args)

        return counted

    torch._dynamo.reset()
    counters.clear()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.step = torch.compile(optimizer.step, backend=backend)
    train(model, optimizer, call=torch.compile(model, backend=backend))
    scaled = torch.compile(lambda x, n: x * n + 1, backend=backend)
    total = sum(scaled(torch.ones(size), size).sum().item() for size in (2, 3, 4))
    stats = {name: dict(counters[name]) for name in ("stats", "frames", "recompiles")}
    breaks = {reason.partition("\n")[0]: count for reason, count in counters["graph_break"].items()}
    case(digest(model), total, calls, stats, breaks)


def ddp(case):
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    case(digest(model))


def no_sync(case):
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        with model.no_sync():
            model(batch(step)).square().mean().backward()
        model(batch(step + 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    case(digest(model))


def comm_hook(case):
    def halve(state, bucket):
        work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, halve)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    case(digest(model))


def fsdp2(case):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    case(digest(model))


def other_collectives(case):
    """One of each kind, two of them functional, on the world and on a group."""
    import torch.distributed._functional_collectives as functional

    rank, group = dist.get_rank(), dist.new_group([0, 1])
    mine, out = torch.full((4,), rank + 1.0), torch.zeros(8)
    dist.all_gather_into_tensor(out, mine, group=group)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, mine)
    dist.broadcast(mine, 1)
    work = dist.isend(mine, 1 - rank) if rank == 0 else dist.irecv(mine, 1 - rank)
    work.wait()
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    summed = functional.all_reduce(mine, "sum", group) + 1
    scattered = functional.reduce_scatter_tensor(mine, "sum", 0, group) + 1
    with torch.inference_mode():
        inferred = torch.ones(3)
        dist.all_reduce(inferred)
    dist.barrier()
    case([t.tolist() for t in (out, part, mine, summed, scattered, inferred)], objects)


def workers(case):
    for method in ("fork", "spawn"):
        loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=method)
        rows = list(loader)
        in_workers = {pid for _, _, pids in rows for pid in pids.tolist()}
        traced = any(flag for _, flags, _ in rows for flag in flags.tolist())
        total = sum(data.double().sum().item() for data, _, _ in rows)
        case(method, total, len(in_workers), os.getpid() in in_workers, traced)


def main():
    torch.manual_seed(0)
    random.seed(0)
    dist.init_process_group("gloo")
    for run in (compiled, ddp, no_sync, comm_hook, fsdp2, other_collectives, workers):
        torch.manual_seed(1)

        run(functools.partial(say, run.__name__))
    say("random", random.random(), torch.rand(1).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
