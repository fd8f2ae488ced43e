"""`EarlyExit`: what torch's `Join` does for one DDP model, without the work that buys nothing.

Under `Join` a rank that has run out of data takes part in every further all-reduce of its peers with zeros.
Under `EarlyExit` it leaves: its peers go on among themselves and divide by the same number, so the parameters
come out the same. The finished rank sleeps until the last one is done and then receives the final model
(``park``), or its process ends and gives its device back (``release``).

    with EarlyExit(model):          # instead of: with Join([model]):
        for batch in batches:
            ...

Equal to `Join`: bit by bit with two ranks; with more, the backend may add up the survivors' gradients in
another order (within 1e-6). This holds for `no_sync`, static graphs, `divide_by_initial_world_size=False`,
BatchNorm buffers, and a communication hook registered on the model before or after. A hook sees the model's
process group with its full size, and its all-reduces and broadcasts on that group reach the ranks that train.

Refused with `SyncError`, because it could not be equal: `find_unused_parameters`, SyncBatchNorm, buffer
hooks, compiled autograd's reducer, several models or other Joinables (ZeroRedundancyOptimizer), and
communication hooks with an error memory, groups of their own, or other collectives (PowerSGD, post-local SGD,
quantisation).

Limits:
- Inside the block, collectives of the script on the model's process group reach the ranks that still train;
  other kinds than all-reduce, broadcast and barrier raise `SyncError` once a rank has left.
- After a release, the ranks that are left (those that finished last) keep the model's process group among
  themselves in the same way; entering another `EarlyExit` on it raises `SyncError`. Collectives on other
  groups with a released rank fail or hang until their time-out, as with any process that has ended.
- The process that hosts the rendezvous store (rank 0 without torchrun) cannot be released; it parks.
- Under torchrun on several nodes, the agent of the node that hosts the store must outlive the others: do not
  release all ranks of that node while others train.
- Each time ranks leave, the others connect two new groups (about 2 ms with gloo and few ranks).
- With a static graph, every rank needs a batch in the first epoch, as with Join.
- With NCCL, a released rank aborts its communicators, because destroying them may wait for the others. This
  path has not been run yet.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Joinable, _JoinConfig
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from magneton_dist.errors import SyncError
from magneton_dist.sync import routing
from magneton_dist.sync.membership import PARKS, RELEASED, Membership
from magneton_dist.tracer.origin import label

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_UNEQUAL_HOOKS = {
    _HOOKS + "powerSGD_hook": "its error memory makes a finished rank's zeros count under Join",
    _HOOKS + "post_localSGD_hook": "it reduces in groups of its own",
    _HOOKS + "quantization_hooks": "it gathers one tensor from every rank of the group",
    _HOOKS + "ddp_zero_hook": "it needs every rank to update its share of the parameters",
}


class EarlyExit:
    """Context manager for training on uneven inputs; equal to ``Join([model])``.

    Every rank of the model's process group must enter it. It may be entered again, once per epoch.

    Args:
        model: the DDP model, alone or as the only item of a sequence.
        enable: False makes the context manager do nothing, like Join's.
        divide_by_initial_world_size: True divides gradients by the size of the process group, False by the
            number of ranks that train, like Join's. A communication hook divides by itself.
        on_finish: what a rank does that finishes before others. ``park`` sleeps and receives the final model;
            ``release`` ends the process: it destroys all process groups and raises ``SystemExit(0)``.
        timeout: how long to wait for a peer before giving up.

    Raises:
        SyncError: the model is one for which this could not be equal to Join.
    """

    def __init__(
        self,
        model: DistributedDataParallel | Sequence[Joinable],
        *,
        enable: bool = True,
        divide_by_initial_world_size: bool = True,
        on_finish: Literal["park", "release"] = "park",
        timeout: timedelta = timedelta(minutes=30),
    ) -> None:
        if on_finish not in ("park", "release"):
            raise SyncError(f"on_finish is {on_finish!r}", do="use 'park' or 'release'")
        self._model: Any = _only_model(model)  # most of what follows is untyped in torch
        _refuse_unequal(self._model)
        self._enable = enable
        self._divide_by_initial_world_size = divide_by_initial_world_size
        self._on_finish = on_finish
        self._timeout = timeout

    def __enter__(self) -> EarlyExit:
        if not self._enable:
            return self
        _refuse_hooks(self._model)
        routing.refuse_routed(self._model.process_group)
        # Left enabled by an earlier Join, it would make the model notify ranks that do not listen.
        self._model._join_config = _JoinConfig(False, False, False)
        self._forwards = 0
        self._reductions = 0  # forward passes whose gradients are reduced
        self._membership = Membership(self._model.process_group, self._timeout)
        routing.attach(self._membership)
        begin = torch.compiler.disable(self._begin)
        self._before_forward = self._model.register_forward_pre_hook(begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._enable:
            return
        self._before_forward.remove()
        membership = self._membership
        failed = kind is not None
        try:
            if not failed:
                self._finish()
        except SystemExit:  # a release
            raise
        except BaseException:
            failed = True
            raise
        finally:
            if failed:
                membership.abandon()
            if failed or not membership.released:
                routing.detach(membership)

    def _begin(self, model: torch.nn.Module, inputs: Any) -> None:
        """At the start of a forward pass: vote, and bring the buffers in line as Join would."""
        self._forwards += 1
        ddp = self._model
        syncs_buffers = ddp.will_sync_module_buffers()
        may_rebuild = torch.is_grad_enabled() and self._reductions <= 2
        reduces = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        if not (syncs_buffers or may_rebuild or reduces):
            return  # no_sync or no_grad: nothing is exchanged
        self._vote()
        if may_rebuild:
            self._rebuild_buckets()
        self._reductions += reduces
        if syncs_buffers:
            self._membership.settle()
            ddp._assign_modules_buffers()
            buffers = tuple(ddp.modules_buffers)
            with label("ddp_buffers"), torch.no_grad(), _unsafe_preserve_version_counter(buffers):
                ddp._sync_module_buffers(self._membership.live[-1])
            ddp.require_forward_param_sync = False  # done; the end of the forward pass sets it again

    def _rebuild_buckets(self) -> None:
        """Do what the forward pass would do once, after the first reduction or (static graph) the second.

        There, rank 0 decides the layout; but it may have left.
        """
        with label("ddp_buffers"), self._membership.any_root():
            if self._model.reducer._rebuild_buckets():
                self._model._has_rebuilt_buckets = True

    def _vote(self) -> None:
        """Vote to go on, and tell the reducer what to divide by."""
        self._membership.vote()
        if not self._divide_by_initial_world_size:
            self._model.reducer._set_forward_pass_work_handle(self._membership.count(trains=True), False)

    def _finish(self) -> None:
        """This rank has no more data."""
        membership = self._membership
        release = self._on_finish == "release"
        stays = release and _hosts_store()
        membership.vote(RELEASED if release and not stays else PARKS, self._forwards)
        if not self._divide_by_initial_world_size:
            # Later training without a context manager divides by the size of the group again.
            self._model.reducer._set_forward_pass_work_handle(membership.count(trains=False), True)
        membership.settle()
        if not membership.over:
            if release and not stays:
                self._release()
            if stays:
                warnings.warn(
                    f"rank {membership.rank} hosts the rendezvous store and cannot be released: it parks",
                    stacklevel=3,
                )
            membership.park()
        membership.reunite()
        with label("sync_control"):
            self._model._sync_final_model(membership.leads)
            self._align(membership.leads)
        membership.close()

    def _align(self, leads: bool) -> None:
        """Bring the model's state in step on all ranks, as Join's shadowing does on the way."""
        ddp = self._model
        state = torch.tensor(
            [not ddp._has_rebuilt_buckets, leads and ddp.require_forward_param_sync],
            dtype=torch.int32,
            device=ddp.device,
        )
        dist.all_reduce(state, dist.ReduceOp.MAX, ddp.process_group)
        buckets_differ, ddp.require_forward_param_sync = map(bool, state.tolist())
        if buckets_differ:  # a rank left before the buckets were rebuilt
            reducer = ddp.reducer
            reducer._reset_state()
            reducer._push_all_rebuilt_params()
            with self._membership.any_root():
                reducer._rebuild_buckets()  # one layout for all, in no good order
            reducer._reset_state()  # so that the next steps find the good order
            ddp._has_rebuilt_buckets = False

    def _release(self) -> NoReturn:
        """End this process without disturbing the others."""
        if self._model.device.type != "cpu":
            torch.accelerator.synchronize()  # the last all-reduce may still run
        self._membership.await_release()
        if "nccl" in dist.get_backend_config(self._model.process_group):
            distributed_c10d._abort_process_group()  # destroying a communicator may wait for the others
        else:
            dist.destroy_process_group()
        raise SystemExit(0)


def _only_model(model: DistributedDataParallel | Sequence[Joinable]) -> DistributedDataParallel:
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    if len(models) == 1 and isinstance(models[0], DistributedDataParallel):
        return models[0]
    given = ", ".join(type(m).__name__ for m in models)
    raise SyncError(
        f"EarlyExit handles one DistributedDataParallel model, not [{given}]",
        do="use torch.distributed.algorithms.join.Join for several models or other Joinables",
    )


def _refuse_unequal(model: DistributedDataParallel) -> None:
    reasons = {
        "find_unused_parameters=True: Join keeps gradients of parameters that only finished ranks used": (
            model.find_unused_parameters
        ),
        "SyncBatchNorm: it exchanges statistics in groups and operations of its own": any(
            isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()
        ),
        "a buffer communication hook, which Join does not support either": hasattr(model, "buffer_hook"),
        "the reducer of compiled autograd, whose collectives cannot be routed": model._use_python_reducer,
    }
    for reason, present in reasons.items():
        if present:
            raise SyncError(f"EarlyExit cannot be equal to Join with {reason}", do="use Join for this model")


def _refuse_hooks(model: DistributedDataParallel) -> None:
    for hook, _ in model._comm_hooks:
        reason = _UNEQUAL_HOOKS.get(getattr(hook, "__module__", ""))
        if reason is not None:
            raise SyncError(
                f"EarlyExit cannot be equal to Join with the hook {hook.__qualname__}: {reason}",
                do="use Join for this model",
            )


def _hosts_store() -> bool:
    """Whether the rendezvous store ends with this process: rank 0, unless torchrun's agent hosts it."""
    store = distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(store, TCPStore) and dist.get_rank() == 0 and not agent
