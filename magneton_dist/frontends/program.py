"""A program of named results, as JAX and TensorFlow have it, written as rows of operators and values.

Every result is a value with a storage of its own: what shares memory underneath is the compiler's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from magneton_dist.tracer.arguments import as_json
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.spool import Spool

Frame = tuple[str, int, str]  # file, line, function


class Program:
    """Writes one program into a spool; call `finish` at its end."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._fingerprints = Fingerprints(spool)
        self._values = 0
        self._operators = 0
        self._stacks: dict[tuple[Frame, ...], int] = {}

    def value(self, tensor: torch.Tensor, *, role: str, slot: str | None = None, dtype: str | None = None) -> int:
        """Write a value and its fingerprint; returns its id.

        Args:
            tensor: its elements, on the CPU (see `frontends.arrays`).
            role: parameter, input or activation.
            slot: name of the parameter.
            dtype: as the framework has it, where torch has no such type.
        """
        self._values += 1
        self._spool.put(
            "value",
            self._values,
            self._values,
            0,
            0,
            list(tensor.shape),
            list(tensor.stride()),
            dtype or str(tensor.dtype).removeprefix("torch."),
            "cpu",
            tensor.numel() * tensor.element_size(),
            role,
            slot,
            None,
        )
        self._fingerprints.written(self._values, (self._values, 0), tensor, "", "forward")
        return self._values

    def operator(
        self,
        name: str,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        arguments: list[Any],
        frames: Iterable[Frame] = (),
        phase: str = "forward",
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        """Write an operator.

        Args:
            name: with its framework in front: jax.dot_general.
            inputs, outputs: ids of values.
            arguments: as JSON, see `tracer.arguments`.
            frames: of the source, innermost first.
            phase: forward, backward or other.
            start_ns, end_ns: on the host's monotonic clock, where known.
        """
        self._spool.put(
            "op",
            self._operators,
            0,
            name,
            phase,
            list(inputs),
            list(outputs),
            as_json(arguments),
            self._stack(tuple(frames)),
            start_ns,
            end_ns,
        )
        self._operators += 1

    def finish(self) -> None:
        """Write what is still held back."""
        self._fingerprints.finish(lambda tensor: (0, 0))

    def _stack(self, frames: tuple[Frame, ...]) -> int | None:
        if not frames:
            return None
        if frames not in self._stacks:
            self._stacks[frames] = len(self._stacks)
            self._spool.put("stack", self._stacks[frames], frames)
        return self._stacks[frames]
