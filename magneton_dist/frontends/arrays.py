"""Arrays of other frameworks as torch tensors on the CPU: same shape, same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_SHARED = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
})  # fmt: skip
# Types of ml_dtypes that torch has under the same name: their bits are handed over.
_SAME_BITS = frozenset({
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
})  # fmt: skip
_NARROW = frozenset({"int2", "int4", "uint2", "uint4"})


def as_tensor(array: npt.NDArray[Any]) -> torch.Tensor | None:
    """`array` as a contiguous tensor, its memory shared where possible; None when torch has no such numbers.

    Integers of less than 8 bits become int8.
    """
    name = array.dtype.name
    if name in _SAME_BITS:
        bits = torch.from_numpy(_owned(array).view(np.uint8 if array.itemsize == 1 else np.int16))
        dtype: torch.dtype = getattr(torch, name)
        return bits.view(dtype)
    if name in _NARROW:
        return torch.from_numpy(array.astype(np.int8))
    return torch.from_numpy(_owned(array)) if name in _SHARED else None


def _owned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Contiguous, writable and of native byte order: torch takes nothing else."""
    if array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
