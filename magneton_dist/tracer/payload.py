"""What a collective carries, and whether it is all zeros, without waiting for any device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

# +0.0 and -0.0 of every float type, and the integer 0, have none but these bits.
_NOT_ZERO = ~0x8080808080808080
_WORD = ctypes.c_uint64
_WORD_BYTES = 8
_SAMPLES = 4096


def tensors(argument: object) -> list[torch.Tensor]:
    """The tensors in an operator's argument: a tensor, a list, or a list of lists."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if not isinstance(argument, list):
        return []
    if argument and isinstance(argument[0], list):
        return [tensor for inner in argument for tensor in inner]
    return argument


def is_zero(payload: Sequence[torch.Tensor]) -> bool:
    """All elements of these CPU tensors are zero.

    A gradient is told from zeros by a word of its memory (under 1 µs); what looks like zeros at its start,
    middle and end is sampled, and only what is zero at all samples is read whole.
    """
    for tensor in payload:
        size = tensor.nbytes
        if size >= _WORD_BYTES and tensor.is_contiguous():
            start, last = tensor.data_ptr(), size - _WORD_BYTES
            for offset in (0, last // 16 * 8, last // 8 * 8):
                if _WORD.from_address(start + offset).value & _NOT_ZERO:
                    return False
        if not _all_zero(tensor):
            return False
    return True


def _all_zero(tensor: torch.Tensor) -> bool:
    with torch.no_grad():
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()
        stride = flat.numel() // _SAMPLES
        if stride > 1 and flat.dim() == 1 and bool(flat[::stride].any()):
            return False
        return not bool(flat.any())
