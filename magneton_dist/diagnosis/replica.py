"""One operator call, built again from its description in a record, with seeded random values.

Runs in fresh processes only: standard library and torch. Operators of ATen alone are called, those that replay
calls, too; arguments are JSON as `magneton_dist.tracer.arguments` writes it.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from time import monotonic_ns, perf_counter
from typing import Any

import torch

from magneton_dist.energy.replay.operator import extent, resolve
from magneton_dist.errors import InputError

# Calls of torch's that choose among operators: what is recorded is what they chose.
CHOOSERS: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.scaled_dot_product_attention": torch.nn.functional.scaled_dot_product_attention
}
OPTIMIZER = "torch.optim."
LONGEST_S, MOST_CALLS, FEWEST_CALLS = 0.25, 200, 5


class NotReplayableError(Exception):
    """This call cannot be built again, and why."""


def replica_of(call: Mapping[str, Any]) -> Replica:
    """What can make `call` again and again.

    Args:
        call: operator, arguments and tensors as `magneton_dist.diagnosis.calls.Call` describes them.

    Raises:
        NotReplayableError: it cannot be built.
    """
    return OptimizerReplica(call) if call["operator"].startswith(OPTIMIZER) else Replica(call)


class Replica:
    """A call that can be made again and again.

    Args:
        call: operator, arguments and tensors as `magneton_dist.diagnosis.calls.Call` describes them.
    """

    def __init__(self, call: Mapping[str, Any]) -> None:
        self._operator = self._found(call["operator"])
        self._tensors: dict[int, torch.Tensor] = {}
        self._described = {int(key): tensor for key, tensor in call["tensors"].items()}
        self._positional: list[Any] = []
        self._named: dict[str, Any] = {}
        _check_size(self._described.values())
        for argument in call["arguments"]:
            if isinstance(argument, dict) and "name" in argument:
                self._named[argument["name"]] = self._built(argument["value"])
            else:
                self._positional.append(self._built(argument))

    @property
    def gpu(self) -> bool:
        """Some tensor is on a GPU."""
        return any(tensor.is_cuda for tensor in self._tensors.values())

    def __call__(self) -> Any:
        """Make the call, as autograd makes it: gradients are wanted, but nothing is recorded."""
        with torch._C._AutoDispatchBelowAutograd():
            return self._operator(*self._positional, **self._named)

    def seconds(self) -> list[float]:
        """How long each of a number of calls took; on a GPU until it was done."""
        self()
        found: list[float] = []
        end = perf_counter() + LONGEST_S
        while len(found) < FEWEST_CALLS or (len(found) < MOST_CALLS and perf_counter() < end):
            start = perf_counter()
            self()
            if self.gpu:
                torch.cuda.synchronize()
            found.append(perf_counter() - start)
        return found

    def repeated(self, seconds: float) -> dict[str, int]:
        """Make the call back to back for so long: when, on the monotonic clock, and how often."""
        start_ns, rounds = monotonic_ns(), 0
        end_ns = start_ns
        while end_ns - start_ns < seconds * 1e9:
            for _ in range(max(1, rounds // 10)):
                self()
                rounds += 1
            if self.gpu:
                torch.cuda.synchronize()
            end_ns = monotonic_ns()
        return {"start_ns": start_ns, "end_ns": end_ns, "rounds": rounds}

    def _found(self, name: str) -> Callable[..., Any]:
        return _operator(name)

    def _built(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return [self._built(item) for item in argument]
        if not isinstance(argument, dict):
            return argument
        (kind, value), *_ = argument.items()
        if kind == "v":
            if value not in self._tensors:
                self._tensors[value] = _tensor(self._described[value], seed=len(self._tensors))
            return self._tensors[value]
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, value)
        if kind == "device":
            return torch.device(value)
        if kind == "float":
            return float(value)
        if kind == "literal":
            return ast.literal_eval(value)
        if kind == "complex":
            return complex(*value)
        raise NotReplayableError(f"an argument of kind {kind} is not kept in the record")


class OptimizerReplica(Replica):
    """An optimizer's step. The first one makes its state, as in the job's first step."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        super().__init__(call)
        (parameters,) = self._positional
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        for leaf in leaves:
            leaf.grad = torch.full_like(leaf, 1e-3)
        known = inspect.signature(self._operator).parameters
        self._optimizer = self._operator(leaves, **{n: value for n, value in self._named.items() if n in known})

    def __call__(self) -> Any:
        """Step once."""
        return self._optimizer.step()

    def _found(self, name: str) -> Callable[..., Any]:
        kind = getattr(torch.optim, name.removeprefix(OPTIMIZER), None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise NotReplayableError(f"{name} is no optimizer of torch")
        return kind


def _operator(name: str) -> Callable[..., Any]:
    if name in CHOOSERS:
        return CHOOSERS[name]
    try:
        found: Callable[..., Any] = resolve(name)
    except InputError as error:
        raise NotReplayableError(f"{name}: {error.what}") from error
    return found


def _check_size(tensors: Iterable[Mapping[str, Any]]) -> None:
    """Refuse what would not leave half of the free memory to others."""
    wanted = sum(extent(t) * getattr(torch, t["dtype"]).itemsize for t in tensors if t["device"] == "cpu")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > free / 2:
        raise NotReplayableError(f"its tensors need {wanted / 1e9:.3g} GB, of which {free / 1e9:.3g} GB are free")


def _tensor(described: Mapping[str, Any], seed: int) -> torch.Tensor:
    """A tensor of this shape, stride, offset, dtype and device."""
    dtype: torch.dtype = getattr(torch, described["dtype"])
    generator = torch.Generator().manual_seed(seed)
    elements = extent(described)
    if dtype.is_floating_point or dtype.is_complex:
        drawn_as = dtype if dtype.itemsize > 1 else torch.float32
        storage = torch.randn(elements, dtype=drawn_as, generator=generator).to(dtype)
    else:  # 0 and 1 are indices into almost anything
        storage = torch.randint(0, 2, (elements,), generator=generator).to(dtype)
    made = storage.to(described["device"]).as_strided(described["shape"], described["stride"], described["offset"])
    return made.requires_grad_() if described["parameter"] and made.is_floating_point() else made
