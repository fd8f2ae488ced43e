"""What EarlyExit refuses, in a group of one rank, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import magneton_dist.sync
from magneton_dist.errors import SyncError
from magneton_dist.sync import EarlyExit


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def model(group: dist.ProcessGroup) -> DDP:
    return DDP(nn.Linear(2, 1))


def with_sync_batch_norm() -> DDP:
    model = DDP(nn.Sequential(nn.Linear(2, 2)))
    model.module.append(nn.SyncBatchNorm(2))  # DDP itself accepts it on GPUs only
    return model


def with_buffer_hook() -> DDP:
    model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model._register_buffer_comm_hook(None, lambda state, buffers: None)
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Linear(2, 1), "not [Linear]"),
        (lambda: [], "not []"),
        (lambda: [DDP(nn.Linear(2, 1)), DDP(nn.Linear(2, 1))], "not [DistributedDataParallel, "),
        (
            lambda: [ZeroRedundancyOptimizer(nn.Linear(2, 1).parameters(), torch.optim.SGD, lr=0.1)],
            "not [ZeroRedundancyOptimizer]",
        ),
        (lambda: DDP(nn.Linear(2, 1), find_unused_parameters=True), "find_unused_parameters=True"),
        (with_sync_batch_norm, "SyncBatchNorm"),
        (with_buffer_hook, "buffer communication hook"),
    ],
)
def test_refuses_what_could_not_be_equal(
    group: dist.ProcessGroup, make: Callable[[], object], says: str
) -> None:
    with pytest.raises(SyncError) as refused:
        EarlyExit(make())  # type: ignore[arg-type]
    assert says in str(refused.value)
    assert "Join" in str(refused.value)


@pytest.mark.parametrize("name", ["powerSGD_hook", "quantization_pertensor_hook"])
def test_refuses_hooks_that_could_not_be_equal(model: DDP, name: str) -> None:
    if name == "powerSGD_hook":
        model.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    else:
        model.register_comm_hook(None, quantization_pertensor_hook)
    block = EarlyExit(model)
    with pytest.raises(SyncError, match=name):
        block.__enter__()


def test_refuses_an_unknown_end(model: DDP) -> None:
    with pytest.raises(SyncError, match="leave"):
        EarlyExit(model, on_finish="leave")  # type: ignore[arg-type]


def test_refuses_two_blocks_on_one_group(model: DDP) -> None:
    with EarlyExit(model), pytest.raises(SyncError, match="another EarlyExit block"):
        EarlyExit(DDP(nn.Linear(2, 1))).__enter__()


def test_leaves_nothing_on_the_model(model: DDP) -> None:
    """A block can be entered again, also after an exception, and no group of ours is left."""
    block = EarlyExit(model)

    def fail() -> None:
        with block:
            model(torch.ones(3, 2)).sum().backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    groups = set(dist.distributed_c10d._world.pg_names.values())
    for _ in range(2):
        with block:
            model(torch.ones(3, 2)).sum().backward()
    assert set(dist.distributed_c10d._world.pg_names.values()) == groups
    assert not model._forward_pre_hooks
    assert model.module.weight.grad is not None
    assert model.module.weight.grad.tolist() == [[9.0, 9.0]]  # three passes over three ones


def test_disabled_does_nothing(model: DDP) -> None:
    groups = set(dist.distributed_c10d._world.pg_names.values())
    with EarlyExit(model, enable=False):
        assert not model._forward_pre_hooks
        assert set(dist.distributed_c10d._world.pg_names.values()) == groups


def test_needs_torch_only() -> None:
    heavy = {"polars", "ray", "pydantic", "yaml", "numpy.testing", "networkx", "rich"}
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, magneton_dist.sync; magneton_dist.sync.EarlyExit; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert heavy.isdisjoint(imported)
    assert "magneton_dist.sync.early_exit" in imported


def test_runs_on_python_3_9() -> None:
    for source in Path(magneton_dist.sync.__file__).parent.glob("*.py"):
        ast.parse(source.read_text(), feature_version=(3, 9))


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="LateExit"):
        magneton_dist.sync.LateExit  # noqa: B018
