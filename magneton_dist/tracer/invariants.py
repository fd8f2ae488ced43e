"""Numbers of tensors that views, transpositions and rounding leave alone.

Each level is finer and dearer than the one before; all stay on the tensors' device.

- moments: sums over the elements, and an exact checksum of their bits in any order
- s4: how the energy spreads over the singular values of an unfolding, by one matrix product. An unfolding
  makes a matrix of a tensor, some of its modes as rows and the others as columns
- profile: the sums along a mode, as norms and under fixed signs. Norms do not see the order of the elements,
  signs do
- singular values of an unfolding: the invariant of Magneton (arXiv 2512.08365, section 4.1), as oracle

Elements that are not finite, or 1e30 and more (mask fills), count as zero everywhere but in the checksum; the
moments say how many others there are. A *batch* has shape (tensors, *modes) and holds tensors of one shape,
or one that is large. Nothing here synchronises a device, but for the singular values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from magneton_dist.tracer.parameters import splitmix64

HUGE = 1e30
MOMENTS = 6  # sums of x, |x|, x^2, x^4 and of elements that count; the checksum, as bits
SIGNS = 4  # projections of a profile
PROFILE = 2 + 2 * SIGNS
MOST_MODES = 5  # of tensors with more, only single modes are unfolded
LONGEST_PROFILE = 1 << 20

_PANEL = 1 << 24  # elements of one matrix product: 64 MiB
_BLOCK = 128  # rows of such a product that are computed together on a processor
_LEAST = 1e-37  # scales beyond its inverse are no normal float32
_CACHED_SIGNS = 1 << 16

Mode = tuple[int, int]  # size and stride


class Unfolding(NamedTuple):
    """An unfolding: its modes on the small and on the large side, and the size of the small one."""

    small: tuple[int, ...]
    large: tuple[int, ...]
    rows: int


# --- layouts ---


def is_backed(tensor: torch.Tensor) -> bool:
    """Does the storage hold what `tensor` points to? FSDP frees storages behind the backs of their tensors."""
    if not tensor.numel():
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without lazy conjugation or negation; the parts of complex numbers become a mode of two."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg()


def modes_of(tensor: torch.Tensor) -> tuple[Mode, ...]:
    """Modes longer than one, outermost in memory first."""
    pairs = zip(tensor.shape, tensor.stride())
    return tuple(sorted((pair for pair in pairs if pair[0] != 1), key=lambda pair: (-pair[1], -pair[0])))


def merged(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """`modes` with neighbours joined that can be read as one: equal for all views of the same elements."""
    out: list[Mode] = []
    for size, stride in modes:
        if out and out[-1][1] == stride * size:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def seen_through(tensor: torch.Tensor, modes: Sequence[Mode]) -> torch.Tensor:
    """`tensor` with exactly `modes`."""
    sizes, strides = [size for size, _ in modes], [stride for _, stride in modes]
    return tensor.as_strided(sizes, strides, tensor.storage_offset())


@lru_cache(maxsize=4096)
def unfoldings(sizes: tuple[int, ...], cap: int, work: float) -> tuple[Unfolding, ...]:
    """The unfoldings of a tensor with these sizes, each with its complement once, smallest side first.

    Args:
        sizes: lengths of the modes, all greater than one.
        cap: longest small side.
        work: multiplications that all of them together may take; the largest are left out first.
    """
    every, numel = range(len(sizes)), prod(sizes)
    found = []
    for count in range(1, len(sizes) // 2 + 1 if len(sizes) <= MOST_MODES else 2):
        for group in itertools.combinations(every, count):
            if 2 * count == len(sizes) and 0 not in group:
                continue
            rest = tuple(m for m in every if m not in group)
            rows = prod(sizes[m] for m in group)
            if rows * rows > numel:
                group, rest, rows = rest, group, numel // rows
            if rows <= cap:
                found.append(Unfolding(group, rest, rows))
    found.sort(key=lambda unfolding: unfolding.rows)
    kept = []
    for unfolding in found:
        work -= float(unfolding.rows) * numel
        if work < 0:
            break
        kept.append(unfolding)
    return tuple(kept)


# --- numbers ---


def moments(batch: torch.Tensor, chunk: int) -> torch.Tensor:
    """(tensors, MOMENTS) float64 of a batch of real tensors, looking at about `chunk` elements at once.

    The checksum is the sum modulo 2^64 of splitmix64 over the bits of the elements as float64, so a wider
    dtype makes no difference to it. What float64 cannot hold of an int64 is added to the bits.
    """
    batch = batch.unsqueeze(1)  # so that scalars have a mode to sum over
    out = torch.zeros(batch.shape[0], MOMENTS, dtype=torch.float64, device=batch.device)
    checksum = out.view(torch.int64)[:, 5]
    every = list(range(1, batch.dim()))
    memory = torch.empty(0)
    for piece in pieces(batch, every, chunk):
        if memory.shape[1:] != piece.shape:  # the same for all pieces but the last ones: fresh memory is slow
            memory = torch.empty(3, *piece.shape, dtype=torch.float64, device=batch.device)
        wide, one, other = memory
        bits = wide.copy_(piece).view(torch.int64)
        if piece.dtype is torch.int64:
            bits = bits + (piece - wide.to(torch.int64))
        checksum += splitmix64(bits, one.view(torch.int64), other.view(torch.int64)).sum(every)
        magnitude = torch.abs(wide, out=one)
        if seen_to_be_ordinary(magnitude):
            out[:, 4] += piece[0].numel()
        else:
            left_out = ~(magnitude < HUGE)  # true for NaN
            wide.masked_fill_(left_out, 0.0)
            magnitude.masked_fill_(left_out, 0.0)
            out[:, 4] += piece[0].numel() - left_out.sum(every, dtype=torch.float64)
        sums = [wide.sum(every), magnitude.sum(every)]
        square = torch.mul(magnitude, magnitude, out=other)
        sums += [square.sum(every), torch.mul(square, square, out=one).sum(every)]
        out[:, :4] += torch.stack(sums, 1)
    return out


def seen_to_be_ordinary(magnitude: torch.Tensor) -> bool:
    """Does every element count? Only asked on a CPU, where an answer costs no waiting; elsewhere False."""
    return is_on_host(magnitude) and magnitude.numel() > 0 and float(magnitude.max()) < HUGE


def is_on_host(tensor: torch.Tensor) -> bool:
    """Can its elements be looked at without waiting for a device?"""
    return tensor.device.type == "cpu"


def pieces(batch: torch.Tensor, splittable: Sequence[int], limit: int) -> Iterator[torch.Tensor]:
    """Parts of at most `limit` elements, cut along the longest of the `splittable` dimensions first."""
    if batch.numel() <= limit or not splittable:
        yield batch
        return
    longest = max(splittable, key=lambda d: batch.shape[d])
    length = batch.shape[longest]
    step = max(1, limit * length // batch.numel())
    others = [d for d in splittable if d != longest]
    for start in range(0, length, step):
        yield from pieces(batch.narrow(longest, start, min(step, length - start)), others, limit)


class Normalised:
    """A batch scaled to norm 1 in float32, without what counts as zero; in parts where it is large.

    Args:
        batch: real tensors.
        sums: their `moments`.
    """

    def __init__(self, batch: torch.Tensor, sums: torch.Tensor) -> None:
        one_each = (-1,) + (1,) * (batch.dim() - 1)
        self._batch = batch
        # nothing to leave out, as far as can be seen
        self._ordinary = is_on_host(sums) and bool((sums[:, 4] == batch[0].numel()).all())
        self._scale = sums[:, 2].sqrt().clamp_min(_LEAST).reciprocal().view(one_each)
        self._whole = self._part(batch) if batch.numel() <= _PANEL else None
        self.modes = batch.dim() - 1
        self.fourth = (sums[:, 3] * self._scale.view(-1) ** 4).to(torch.float32)

    def _part(self, batch: torch.Tensor) -> torch.Tensor:
        wide = batch if batch.dtype is torch.float64 else batch.to(torch.float32)
        scaled = wide * self._scale.to(wide.dtype)
        if self._ordinary:
            return scaled.to(torch.float32)
        zero = torch.zeros((), dtype=wide.dtype, device=wide.device)
        return torch.where(wide.abs() < HUGE, scaled, zero).to(torch.float32)

    def parts(self, splittable: Sequence[int]) -> Iterator[torch.Tensor]:
        """The batch, cut along the `splittable` dimensions if need be."""
        if self._whole is not None:
            yield self._whole
            return
        for piece in pieces(self._batch, splittable, _PANEL):
            yield self._part(piece)


def gram(batch: Normalised, unfolding: Unfolding, whole: bool = True) -> torch.Tensor:
    """(tensors, rows, rows) float32: rows times rows of an unfolding.

    Without `whole`, a processor leaves out what lies below the diagonal, and has what lies above it times sqrt(2): the
    diagonal and the norm are the same for little more than half the work.
    """
    small, large = [[m + 1 for m in side] for side in unfolding[:2]]
    rows, total = unfolding.rows, None
    for part in batch.parts(large):
        matrix = part.permute(0, *small, *large).reshape(len(part), rows, -1)
        if whole or rows <= _BLOCK or not is_on_host(matrix):
            product = matrix @ matrix.transpose(1, 2)
            total = product if total is None else total.add_(product)
            continue
        if total is None:
            total = matrix.new_zeros(len(part), rows, rows)
        for start in range(0, rows, _BLOCK):
            end = min(start + _BLOCK, rows)
            block = matrix[:, start:end]
            total[:, start:end, start:end].baddbmm_(block, block.transpose(1, 2))
            if end < rows:
                total[:, start:end, end:].baddbmm_(block, matrix[:, end:].transpose(1, 2), alpha=2**0.5)
    assert total is not None
    return total


def s4(products: torch.Tensor) -> torch.Tensor:
    """(tensors,) ||T T'||_F / ||T||_F^2 of the unfoldings T with these `gram` products."""
    trace = torch.diagonal(products, dim1=1, dim2=2).sum(1)
    norms: torch.Tensor = torch.linalg.vector_norm(products, dim=(1, 2))
    return norms / trace.clamp_min(_LEAST)


def singular_values(products: torch.Tensor) -> torch.Tensor:
    """(tensors, rows) of the unfoldings with these `gram` products, largest first; waits for the device."""
    squares: torch.Tensor = torch.linalg.eigvalsh(products.to(torch.float64))
    return squares.clamp_min(0).sqrt().flip(1)


def profile(batch: Normalised, mode: int) -> torch.Tensor:
    """(tensors, PROFILE) of one mode.

    First the sums of x over all other modes, over ||x||2, then those of x^2, over ||x||4^2: the norms of
    both, then each under SIGNS fixed signs.
    """
    rest = [m + 1 for m in range(batch.modes) if m != mode]
    total: torch.Tensor | float = 0.0
    for part in batch.parts(rest):
        square = part * part
        sums = [part.sum(rest), square.sum(rest)] if rest else [part, square]
        total = torch.stack(sums, 1) + total
    assert isinstance(total, torch.Tensor)
    total[:, 1] /= batch.fourth.sqrt().clamp_min(_LEAST)[:, None]
    projected = total @ signs(total.shape[2], total.device)
    return torch.cat([torch.linalg.vector_norm(total, dim=2), projected.flatten(1)], 1)


def signs(length: int, device: torch.device) -> torch.Tensor:
    """(length, SIGNS) of ones, negative in column k where bit k of splitmix64(i) is set."""
    return (_kept_signs if length <= _CACHED_SIGNS else _signs)(length, device)


def _signs(length: int, device: torch.device) -> torch.Tensor:
    mixed = splitmix64(torch.arange(length, dtype=torch.int64, device=device))
    lanes = torch.arange(SIGNS, dtype=torch.int64, device=device)
    return 1.0 - 2.0 * ((mixed[:, None] >> lanes) & 1).to(torch.float32)


_kept_signs = lru_cache(maxsize=64)(_signs)
