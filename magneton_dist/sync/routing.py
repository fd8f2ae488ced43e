"""Collectives on a process group, sent to those of its ranks that still train.

A kernel in front of the c10d operators, at the Autograd dispatch key, exchanges the process group of a call
just before it reaches the backend. So everything that holds the group (DDP's reducer, its bucket rebuild, a
user's communication hook) goes on using it and sees its size unchanged. The Autograd key lies above
BackendSelect, where the tracer listens: it records the call with the group it really went to.

Functional collectives and tensors made in inference mode do not pass this key and are not routed.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

from magneton_dist.errors import SyncError
from magneton_dist.sync.membership import Membership

_ROUTED = ("allreduce_", "allreduce_coalesced_", "broadcast_", "barrier")
# Their shapes or partners are those of the whole group, so there is nothing right to do once a rank has left.
_REFUSED = (
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allgather_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "gather_",
    "monitored_barrier_",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
    "send",
)

_memberships: dict[dist.ProcessGroup, Membership] = {}
_library: Any = None  # a torch.library.Library once the first model has been attached


def refuse_routed(full: dist.ProcessGroup) -> None:
    """Make sure that the collectives of `full` are not routed yet.

    Raises:
        SyncError: they are, in another block or after a release.
    """
    other = _memberships.get(full)
    if other is None:
        return
    if other.released:
        raise SyncError(
            f"ranks {other.released} of this process group were released by an earlier EarlyExit",
            where=f"rank {other.rank}",
            do="use on_finish='park' for every epoch but the last",
        )
    raise SyncError(
        "this process group is in another EarlyExit block already",
        where=f"rank {other.rank}",
        do="give each model its own process group, or use Join for several models",
    )


def attach(membership: Membership) -> None:
    """Route the collectives of `membership.full` from now on."""
    global _library
    if _library is None:
        # Kept for good: removing a kernel while another thread calls the operator is not safe.
        _library = torch.library.Library("c10d", "IMPL")
        for name in _ROUTED + _REFUSED:
            _library.impl(name, _kernel(name), "Autograd", with_keyset=True)
    _memberships[membership.full] = membership


def detach(membership: Membership) -> None:
    """Stop routing."""
    _memberships.pop(membership.full, None)


def _kernel(name: str) -> Callable[..., Any]:
    """The kernel of one c10d operator: `args` as in the operator's schema, after the dispatch keys."""
    operator = getattr(torch.ops.c10d, name).default
    names = [argument.name for argument in operator._schema.arguments]
    group_at = names.index("process_group")
    root_at = names.index("root_rank") if "root_rank" in names else None

    def kernel(keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        membership = _memberships.get(dist.ProcessGroup.unbox(args[group_at])) if _memberships else None
        if membership is not None:
            group = membership.route()
            if group is not None:
                if name not in _ROUTED:
                    raise SyncError(
                        f"c10d.{name} on a process group that has lost a rank to EarlyExit",
                        where=f"rank {membership.rank}, left: {membership.live}",
                        do="only all_reduce, broadcast and barrier can go on without the ranks that finished",
                    )
                changed = list(args)
                changed[group_at] = group.boxed()
                if root_at is not None:
                    changed[root_at] = membership.index(args[root_at])
                args = tuple(changed)
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *args)

    return kernel
