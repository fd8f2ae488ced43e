"""Digests of the final parameters: do two runs end with the same model?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch

from magneton_dist.tracer.model import Model, local, numbered
from magneton_dist.tracer.spool import Spool

PROJECTIONS = 8
CHUNK = 1 << 18  # elements at once: a few megabytes of float64 and int64 on the parameter's device


class Digest(NamedTuple):
    """Digest of one tensor; sums in float64, `exact` in hexadecimal (see `records.schema.PARAMETERS`)."""

    sum: float
    l1: float
    l2: float
    exact: str
    projections: list[float]


def emit_parameters(spool: Spool, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Write one `parameter` row per parameter of `optimizers`, in their order; a sharded one by its shard.

    Reads every parameter back to the host: to be called when the job has ended, never during steps.
    """
    try:
        names: dict[int, str] = {id(p): name for name, p in Model.of_this_process(optimizers).parameters()}
        seen = set()
        for fallback, parameter in numbered(optimizers):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            shard = local(parameter)
            dtype = str(shard.dtype)[len("torch.") :]
            name = names.get(id(parameter), fallback)
            spool.put("parameter", name, list(shard.shape), dtype, *digest(shard))
    except Exception as error:
        spool.fault("parameters", error)


@torch.no_grad()
def digest(tensor: torch.Tensor) -> Digest:
    """Digest of `tensor`, computed on its device in chunks.

    `exact` is the sum modulo 2^64 of splitmix64 over the bits of the elements as float64: the order of the
    elements and a wider dtype make no difference to it, one changed bit does.
    """
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = flat.detach().reshape(-1)
    device = flat.device
    sums = torch.zeros(3 + PROJECTIONS, dtype=torch.float64, device=device)
    exact = torch.zeros((), dtype=torch.int64, device=device)
    for start in range(0, flat.numel(), CHUNK):
        chunk = flat[start : start + CHUNK].to(torch.float64)
        exact += splitmix64(chunk.view(torch.int64)).sum()
        sums[0] += chunk.sum()
        sums[1] += chunk.abs().sum()
        sums[2] += chunk.square().sum()
        sums[3:] += _signs(start, len(chunk), device) @ chunk
    figures = sums.tolist()
    bits = int(exact) & (2**64 - 1)
    return Digest(figures[0], figures[1], figures[2] ** 0.5, f"{bits:016x}", figures[3:])


def splitmix64(
    bits: torch.Tensor, out: Optional[torch.Tensor] = None, scratch: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """The output function of the splitmix64 generator (Steele, Lea, Flood 2014) of int64 `bits`.

    `out` and `scratch`, like `bits`, spare the allocation of memory, which takes longer than the arithmetic.
    """
    mixed = torch.add(bits, _signed(0x9E3779B97F4A7C15), out=out)
    for by, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # int64 shifts keep the sign; the mask makes the shift a logical one
        scratch = torch.bitwise_right_shift(mixed, by, out=scratch).bitwise_and_((1 << (64 - by)) - 1)
        mixed.bitwise_xor_(scratch)
        if factor != 1:
            mixed.mul_(_signed(factor))
    return mixed


def _signs(start: int, count: int, device: torch.device) -> torch.Tensor:
    """Signs of elements `start`, `start` + 1, ... in each projection, shape (PROJECTIONS, count)."""
    mixed = splitmix64(torch.arange(start, start + count, dtype=torch.int64, device=device))
    lanes = torch.arange(PROJECTIONS, dtype=torch.int64, device=device)
    return 1.0 - 2.0 * ((mixed >> lanes[:, None]) & 1).to(torch.float64)


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant
