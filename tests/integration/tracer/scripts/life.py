"""Trains a little and then ends in the way it is told to."""

import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import magneton_dist

WAYS = {}


def way(function):
    WAYS[function.__name__] = function
    return function


def say(text):
    sys.stdout.write(f"{text}\n")


def train(steps, model=None, optimizer=None):
    model = model or DistributedDataParallel(nn.Linear(4, 4))
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@way
def raises():
    dist.init_process_group("gloo")
    train(3)
    raise KeyError("the job's own fault")


@way
def leaves_at_once():
    dist.init_process_group("gloo")
    train(3)
    os._exit(7)


@way
def exits_with_9():
    dist.init_process_group("gloo")
    train(3)
    sys.exit(9)


@way
def never_destroys():
    dist.init_process_group("gloo")
    train(3)


@way
def ends():
    dist.init_process_group("gloo")
    train(3)
    dist.destroy_process_group()


@way
def begins_again():
    for size in (2, 1):
        dist.init_process_group("gloo")
        for _ in range(size):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()


@way
def fails_once():
    dist.init_process_group("gloo")
    train(2)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("first time")
    dist.destroy_process_group()


@way
def is_killed():
    dist.init_process_group("gloo")
    model = train(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + 2
    while True:
        train(1, model, optimizer)
        if dist.get_rank() == 1 and time.monotonic() > end:
            say(f"KILLED {time.monotonic_ns()}")
            os.kill(os.getpid(), signal.SIGKILL)


@way
def trains_on():
    dist.init_process_group("gloo")
    model = train(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    say(f"PID {os.getpid()}")
    while True:
        train(1, model, optimizer)
        time.sleep(0.01)


@way
def is_alone():
    model = nn.Linear(4, 4)
    train(5, model)


@way
def counts_tokens():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    for step in range(6):
        for optimizer in optimizers:
            train(1, model, optimizer)
        magneton_dist.step(tokens=100 + step)
    dist.destroy_process_group()


@way
def counts_samples_alone():
    for _ in range(3):
        magneton_dist.step(samples=8)


@way
def is_seeded():
    dist.init_process_group("gloo")
    say(f"DRAWN {dist.get_rank()} {torch.rand(1).item()} {random.random()}")
    dist.destroy_process_group()


@way
def skips_a_step():
    model = nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        loss = model(torch.ones(2, 4)).sum() * (float("inf") if step == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@way
def updates_by_hand():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(6):
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)
                parameter.grad = None
    dist.destroy_process_group()


@way
def updates_in_backward():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def update(parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()


def spawned(rank, name):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": name}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train(3)
    dist.destroy_process_group()


@way
def spawns():
    multiprocessing.spawn(spawned, (os.environ["PORT"],), nprocs=2)


@way
def forks():
    multiprocessing.start_processes(spawned, (os.environ["PORT"],), nprocs=2, start_method="fork")


@way
def closes_all_files():
    dist.init_process_group("gloo")
    model = train(2)
    os.closerange(3, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(2, model, optimizer)
    os._exit(0)


if __name__ == "__main__":
    WAYS[sys.argv[1]]()
