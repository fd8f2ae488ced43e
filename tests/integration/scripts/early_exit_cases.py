"""What `EarlyExit` must do, played by real ranks: SCENARIO WORLD_SIZE OUT writes OUT/RANK.json per rank.

Without torchrun it forks the ranks itself, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from magneton_dist.errors import SyncError
from magneton_dist.sync import EarlyExit

# Batches of each rank in each epoch: another rank leaves first each time, some ranks have none or one.
UNEVEN = {
    2: [[0, 3], [4, 2], [1, 5]],
    3: [[2, 0, 4], [3, 5, 1], [1, 3, 3]],
    4: [[0, 2, 4, 3], [5, 1, 2, 2], [1, 3, 1, 4]],
}


@dataclass
class Case:
    name: str
    optimizer: str = "sgd"
    divide_by_initial_world_size: bool = True
    accumulate: int = 1  # batches for each synchronised one; the others are under no_sync
    hook: str | None = None
    batch_norm: bool = False
    view: bool = False
    static_graph: bool = False
    compiled: bool = False
    epochs: list[list[int]] | None = None
    largest_world: int = 2


CASES = [
    Case("sgd", largest_world=4),
    Case("adamw", optimizer="adamw", largest_world=4),
    Case("divide by live ranks", divide_by_initial_world_size=False, optimizer="adamw", largest_world=3),
    Case("no_sync", accumulate=2, largest_world=3),
    Case("batch norm", batch_norm=True, largest_world=3),
    Case("batch norm and no_sync", batch_norm=True, accumulate=3, largest_world=3),
    Case("hook before", hook="before"),
    Case("hook inside", hook="inside", largest_world=3),
    Case("built-in hook", hook="built-in"),
    Case("gradients as bucket views", view=True),
    Case("static graph", static_graph=True, epochs=[[2, 4, 3, 1], [3, 1, 2, 2]]),
    Case("compiled", compiled=True),
]


class Net(nn.Module):
    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(64) if batch_norm else nn.LayerNorm(64)
        self.layers = nn.Sequential(nn.Linear(16, 64), norm, nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def build(case: Case) -> DDP:
    torch.manual_seed(0)
    model = DDP(
        Net(case.batch_norm),
        # Several buckets; but torch.compile's splitter wants none smaller than the first.
        bucket_cap_mb=None if case.compiled else 0.004,
        gradient_as_bucket_view=case.view,
        static_graph=case.static_graph,
    )
    if case.hook == "before":
        model.register_comm_hook(None, fp16_compress_hook)
    elif case.hook == "built-in":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return model


def batches(epoch: int, rank: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * epoch + rank)
    return [torch.randn(8, 16, generator=generator) for _ in range(count)]


def train(case: Case, enter: Callable[[DDP], AbstractContextManager[object]]) -> list[dict[str, torch.Tensor]]:
    """The model's state after each epoch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(case)
    forward = torch.compile(model, backend="eager") if case.compiled else model
    if case.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    states = []
    for epoch, counts in enumerate(case.epochs or UNEVEN[world]):
        with enter(model):
            if case.hook == "inside" and epoch == 0:
                model.register_comm_hook(None, allreduce_hook)
            for index, batch in enumerate(batches(epoch, rank, counts[rank]), 1):
                synchronise = index % case.accumulate == 0
                with nullcontext() if synchronise else model.no_sync():
                    forward(batch).square().mean().backward()
                if synchronise:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return states


def equality(repeats: int) -> dict[str, dict[str, float]]:
    """Every case with Join and with EarlyExit.

    `apart`: the largest difference of any state after any epoch. `moved`: how far training moved the model.
    """
    result: dict[str, dict[str, float]] = {}
    for case in [case for case in CASES if dist.get_world_size() <= case.largest_world] * repeats:
        options = {"divide_by_initial_world_size": case.divide_by_initial_world_size}
        join = train(case, partial(enter_join, **options))
        early = train(case, partial(EarlyExit, **options))
        start = build(case).state_dict()
        before = result.get(case.name, {}).get("apart", 0.0)
        result[case.name] = {
            "apart": max([before, *(apart(a, b) for a, b in zip(join, early, strict=True))]),
            "moved": apart(start, early[-1]),
        }
    return result


def enter_join(model: DDP, **options: bool) -> Join:
    return Join([model], **options)


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference between two states; 0 only when every tensor is equal bit by bit."""
    if all(torch.equal(a[name], b[name]) for name in a):
        return 0.0
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def released() -> dict[str, object]:
    """Rank 0 finishes first, rank 1 last. Who finishes before it must be gone while it still trains.

    Without torchrun, rank 0 hosts the store: it cannot be released and parks.
    """
    rank = dist.get_rank()
    counts = {2: [2, 5], 3: [2, 8, 5]}[dist.get_world_size()]
    pids: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    expected = train(Case("sgd", epochs=[counts]), enter_join)[0]
    model = build(Case("sgd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    result: dict[str, object] = {"gone": []}
    with warnings.catch_warnings(record=True) as warned, EarlyExit(model, on_finish="release"):
        warnings.simplefilter("always")
        for index, batch in enumerate(batches(0, rank, counts[rank])):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if rank == 1 and index == max(counts) - 2:
                leavers = set(range(len(pids))) - {rank}
                if "TORCHELASTIC_RUN_ID" not in os.environ:
                    leavers.remove(0)
                result["gone"] = [leaver for leaver in leavers if ends(pids[leaver])]
    result["warned"] = [str(w.message) for w in warned if "rendezvous" in str(w.message)]
    result["apart"] = apart(expected, model.state_dict())
    one = torch.ones(1)
    dist.all_reduce(one)
    dist.barrier()
    result["left"] = int(one)
    result["gather"] = refusal(lambda: dist.all_gather([torch.zeros(1)] * len(pids), torch.zeros(1)))
    result["root"] = refusal(lambda: dist.broadcast(torch.zeros(1), src=2)) if len(pids) == 3 else ""
    result["again"] = refusal(lambda: EarlyExit(model).__enter__())
    return result


def ends(pid: int) -> bool:
    """Whether the process ends within a few seconds."""
    for _ in range(1500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except SyncError as error:
        return str(error)
    return ""


def lost(how: str) -> dict[str, object]:
    """Rank 0 parks; rank 1 dies, hangs or raises in its third step; what happens to the others, and when."""
    rank = dist.get_rank()
    model = build(Case("sgd"))
    start = time.monotonic()
    try:
        with EarlyExit(model, timeout=timedelta(seconds=3)):
            for index, batch in enumerate(batches(0, rank, 1 if rank == 0 else 50)):
                if rank == 1 and index == 2:
                    if how == "raised":
                        raise ValueError("a bad batch")
                    os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                model(batch).square().mean().backward()
    except (RuntimeError, ValueError, SyncError) as error:
        return {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - start}
    return {"error": None}


def play(scenario: str, out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    name, _, argument = scenario.partition(":")
    if name == "equality":
        result: object = equality(int(argument))
    elif name == "released":
        result = released()
    else:
        result = lost(argument)
    (out / f"{rank}.json").write_text(json.dumps(result))
    if name == "lost":
        os._exit(0)  # its groups are broken
    dist.destroy_process_group()


def main() -> None:
    scenario, world, out, limit_s = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        play(scenario, out)
        return
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
            play(scenario, out)
            sys.exit(0)
        children.append(child)
    codes = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < world:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            codes[children.index(done)] = os.waitstatus_to_exitcode(status)
        elif (scenario == "lost:stopped" and len(codes) == world - 1) or time.monotonic() > deadline:
            for rank, child in enumerate(children):
                if rank not in codes:
                    os.kill(child, signal.SIGKILL)
            deadline += 5
        time.sleep(0.02)
    (out / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
