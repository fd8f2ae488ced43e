"""Whether parameters were written since the backward pass before: how an unknown optimizer shows itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

_WATCHED = 4  # parameters
_NODES = 10_000  # looked at in a graph in search of them


class ParameterWatch:
    """Watches the version counters of a few parameters that gradients flow to."""

    def __init__(self) -> None:
        self._watched: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def changed(self, outputs: Iterable[Any]) -> bool:
        """True when a watched parameter was written in place since the last call.

        Args:
            outputs: what the backward pass starts from; searched for parameters while none is watched.
        """
        alive = [(parameter(), version) for parameter, version in self._watched]
        changed = any(p is not None and p._version != version for p, version in alive)
        watched = [p for p, _ in alive if p is not None] or _leaves(outputs)
        self._watched = [(weakref.ref(p), p._version) for p in watched]
        return changed


def _leaves(outputs: Iterable[Any]) -> list[torch.Tensor]:
    """The first tensors found that a backward pass from `outputs` accumulates gradients in."""
    nodes = [getattr(output, "grad_fn", None) for output in outputs]
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    while nodes and len(found) < _WATCHED and len(seen) < _NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        nodes.extend(following for following, _ in node.next_functions)
    return list(found.values())
