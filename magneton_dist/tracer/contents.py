"""What the inputs of chosen operators hold, kept so that a replay works on the same data.

Only where the configuration names operators, and never more than it allows. Each value is copied on its device when
it is first read, before anything can overwrite it, and written out when the step has been recorded, which waits for
the device. It is user data: only its owner reads the files, which lie beside the spool's segments.
"""

from __future__ import annotations

import ctypes
import os

import torch

from magneton_dist.tracer.spool import Spool

PREFIX, SUFFIX = "input-", ".bin"


class Contents:
    """Contents of one traced step after the other.

    Args:
        spool: for faults.
        folder: of the spool's segments.
        operators: parts of the names of operators.
        max_bytes: of all contents together.
    """

    def __init__(self, spool: Spool, folder: str, operators: tuple[str, ...], max_bytes: float) -> None:
        self._spool, self._folder, self._operators = spool, folder, operators
        self._left = max_bytes
        self._wanted: dict[str, bool] = {}
        self._known: set[int] = set()
        self._copies: dict[int, torch.Tensor] = {}

    def wanted(self, operator: str) -> bool:
        """Are this operator's inputs to be kept?"""
        known = self._wanted.get(operator)
        if known is None:
            known = self._wanted[operator] = any(part in operator for part in self._operators)
        return known

    def keep(self, value: int, tensor: torch.Tensor) -> None:
        """Copy what value `value` holds, once."""
        if value in self._known:
            return
        self._known.add(value)
        if tensor.layout != torch.strided or tensor.nbytes > self._left:
            what = "have no strides" if tensor.layout != torch.strided else "are beyond capture.inputs.max_mb"
            self._spool.fault("inputs", f"some {what}: left out, replay takes random values")
            return
        self._left -= tensor.nbytes
        self._copies[value] = tensor.detach().clone(memory_format=torch.contiguous_format)

    def finish(self) -> None:
        """Write what was copied, elements in the order of the shape; what cannot be written is left out, said so."""
        copies, self._copies = self._copies, {}
        for value, copied in copies.items():
            path = os.path.join(self._folder, f"{PREFIX}{value}{SUFFIX}")
            try:
                _write(path, copied.resolve_conj().resolve_neg().cpu())
            except (OSError, RuntimeError) as error:
                self._spool.fault("inputs", f"some cannot be kept, replay takes random values: {error}")


def _write(path: str, tensor: torch.Tensor) -> None:
    """All of it, or no file."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
        try:
            if tensor.nbytes:
                left = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
                while left:
                    left = left[file.write(left) :]
        except OSError:
            os.unlink(path)
            raise
