"""A collective, replayed by all ranks of its group together. Needs torch alone.

The first rank decides how many repetitions come next and broadcasts the number, so that all ranks, however fast
each is, end after the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from magneton_dist.energy.replay.operator import MOST_BYTES
from magneton_dist.errors import InputError

CHUNK_S = 0.25  # of repetitions between two decisions: a broadcast is below a thousandth of it

Make = Callable[[torch.Tensor, int], Callable[[], object]]


def _stays() -> Any:
    """A reduction that leaves random data random however often it is repeated; a sum would overflow."""
    return dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.MAX


def _all_gather(flat: torch.Tensor, size: int) -> Callable[[], object]:
    whole = flat.new_empty(flat.numel() * size)
    return lambda: dist.all_gather_into_tensor(whole, flat)


def _reduce_scatter(flat: torch.Tensor, size: int) -> Callable[[], object]:
    part = flat.new_empty(max(1, flat.numel() // size))
    whole, kind = flat[: part.numel() * size], _stays()
    return lambda: dist.reduce_scatter_tensor(part, whole, kind)


def _all_reduce(flat: torch.Tensor, size: int) -> Callable[[], object]:
    kind = _stays()
    return lambda: dist.all_reduce(flat, kind)


def _reduce(flat: torch.Tensor, size: int) -> Callable[[], object]:
    kind = _stays()
    return lambda: dist.reduce(flat, 0, kind)


def _all_to_all(flat: torch.Tensor, size: int) -> Callable[[], object]:
    even = flat[: max(1, flat.numel() // size) * size]
    out = torch.empty_like(even)
    return lambda: dist.all_to_all_single(out, even)


# by c10d's name; the payload is what `collectives.bytes` counts
CALLS: Mapping[str, Make] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": lambda flat, size: lambda: dist.broadcast(flat, 0),
    "reduce_": _reduce,
    "_allgather_base_": _all_gather,
    "allgather_": _all_gather,
    "allgather_into_tensor_coalesced_": _all_gather,
    "_reduce_scatter_base_": _reduce_scatter,
    "reduce_scatter_": _reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter,
    "alltoall_base_": _all_to_all,
    "alltoall_": _all_to_all,
}


class Collective:
    """A collective of the default process group, on random data: power depends on what is moved.

    What sums is replayed as a mean (NCCL) or a maximum (gloo), which moves as much and leaves the data as they are.

    Args:
        op: c10d's name of it.
        payload_bytes: on this rank.
        dtype: torch's name of the payload's type.
        device: cpu or cuda.

    Raises:
        InputError: there is no way to call it alone.
    """

    how = "loop, all ranks together"
    restores = False

    def __init__(self, op: str, payload_bytes: int, dtype: str, device: str) -> None:
        kind = getattr(torch, dtype, None)
        if op not in CALLS or not isinstance(kind, torch.dtype) or not 0 < payload_bytes <= MOST_BYTES:
            raise InputError(f"{op} of {payload_bytes} bytes of {dtype} is not replayed", where="collective")
        size = dist.get_world_size()
        random = torch.randn(max(size, payload_bytes // kind.itemsize), generator=torch.Generator().manual_seed(0))
        flat = (random if kind.is_floating_point or kind.is_complex else random.mul(100)).to(device, kind)
        self._call = CALLS[op](flat, size)
        self._on_device = device != "cpu"
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._per_round_s = CHUNK_S

    def run(self, seconds: float) -> tuple[int, int, int]:
        """As `loops.Loop.run`; every rank must call it, the first one's `seconds` count."""
        rounds, first = 0, dist.get_rank() == 0
        dist.barrier()
        self._finish()
        start_ns = end_ns = time.monotonic_ns()
        until_ns = start_ns + round(seconds * 1e9)
        while True:
            wanted = max(1, round(CHUNK_S / self._per_round_s)) if end_ns < until_ns else 0
            together = self._decided(wanted if first else -1)
            if not together:
                return start_ns, end_ns, rounds
            began = time.monotonic_ns()
            for _ in range(together):
                self._call()
            self._finish()
            end_ns = time.monotonic_ns()
            rounds += together
            self._per_round_s = (end_ns - began) / 1e9 / together

    def _finish(self) -> None:
        if self._on_device:
            torch.cuda.synchronize()

    def _decided(self, number: int) -> int:
        self._number.fill_(number)
        dist.broadcast(self._number, 0)
        return int(self._number.item())


def join(backend: str, rendezvous: str, rank: int, size: int) -> None:
    """Become rank `rank` of `size` processes that meet at the file `rendezvous`."""
    settings: dict[str, Any] = {"init_method": f"file://{rendezvous}", "rank": rank, "world_size": size}
    dist.init_process_group(backend, **settings)
