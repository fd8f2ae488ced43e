"""What an operator does to its arguments, beyond what its schema says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

READ_WRITE = "read-write"
OVERWRITE = "overwrite"

# Written without a look at what was there before.
_OVERWRITERS = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
        "_foreach_copy_",
        "_foreach_zero_",
    }
)
# The schema says "written", but no element changes.
_NO_WRITERS = frozenset({"record_stream", "requires_grad_"})
# Running statistics are written, and no schema says so.
_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
# c10d schemas say nothing of writes at all: these write their first argument, which they also read ...
_REDUCERS = frozenset({"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_"})
# ... and these overwrite it.
_RECEIVERS = frozenset(
    {
        "allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "gather_",
        "scatter_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "recv_",
        "recv_any_source_",
    }
)


class Effects(NamedTuple):
    """The operator's full name and, by position or by name of an argument, how it is written."""

    name: str
    writes: dict[int | str, str]
    recorded: bool = True


@cache
def effects_of(operator: Any) -> Effects:
    """Effects of an `OpOverload` or a higher-order operator."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return Effects(f"higher_order.{operator.name()}", {})
    space, _, name = schema.name.partition("::")
    writes: dict[int | str, str] = {}
    for position, argument, how in _written(operator, schema, space, name):
        writes[position] = writes[argument] = how
    # Profiler ranges are marks in a trace, not work.
    return Effects(str(operator), writes, recorded=space != "profiler")


def _written(operator: Any, schema: Any, space: str, name: str) -> Iterator[tuple[int, str, str]]:
    if (space, name) == ("fsdp", "all_gather_copy_in"):
        yield 1, schema.arguments[1].name, OVERWRITE  # not in its schema either
        return
    if space == "c10d":
        if name in _REDUCERS or name in _RECEIVERS:
            yield 0, schema.arguments[0].name, READ_WRITE if name in _REDUCERS else OVERWRITE
        return
    if torch.Tag.inplace_view in operator.tags or name in _NO_WRITERS:
        return
    for position, argument in enumerate(schema.arguments):
        if name in _BATCH_NORMS and argument.name in ("running_mean", "running_var"):
            yield position, argument.name, READ_WRITE
        elif argument.alias_info is not None and argument.alias_info.is_write:
            overwritten = name in _OVERWRITERS or argument.is_out
            yield position, argument.name, OVERWRITE if overwritten else READ_WRITE
