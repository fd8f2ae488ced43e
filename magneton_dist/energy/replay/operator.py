"""One operator, called again with inputs of the recorded kind. Needs torch alone.

Names and arguments come from a record, which is data: only operators of aten are called, none that takes the name of
a file, and inputs are bounded. Contents are seeded random values unless the record kept them; power depends on data,
so the result says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from magneton_dist.errors import InputError
from magneton_dist.tracer.schemas import READ_WRITE, effects_of

MOST_BYTES = 16 << 30  # of inputs
_NAME = re.compile(r"aten\.[a-zA-Z_]\w*\.[a-zA-Z_]\w*")
_DO = "it cannot be replayed; other operators can"
_NAMED: dict[str, Callable[[str], Any]] = {
    "dtype": lambda name: _of_torch(name, torch.dtype),
    "layout": lambda name: _of_torch(name, torch.layout),
    "memory_format": lambda name: _of_torch(name, torch.memory_format),
    "float": float,
}


class Operator:
    """A call of an operator, its inputs made.

    Args:
        name: ``aten.addmm.default``.
        arguments: as `tracer.arguments` writes them.
        values: id -> storage, offset, shape, stride, dtype, role of every tensor among them, and `path`
            where the record kept its contents.
        device: cpu or cuda.
        seed: of the contents that were not kept.

    Attributes:
        restores: it writes into its inputs, which are put back before every call.

    Raises:
        InputError: the record does not say enough, or says what is not to be called.
    """

    def __init__(
        self, name: str, arguments: list[Any], values: Mapping[str, Mapping[str, Any]], device: str, seed: int
    ) -> None:
        self._name, self._device = name, device
        self._call = resolve(name)
        self._tensors = _Tensors(values, device, seed, name)
        self._positional: list[Any] = []
        self._named: dict[str, Any] = {}
        writes, restored = effects_of(self._call).writes, []
        for position, argument in enumerate(arguments):
            keyword = argument["name"] if _is_keyword(argument) else None
            made = self._made(argument["value"] if keyword else argument)
            if writes.get(keyword or position) == READ_WRITE:
                restored.append(made)
            if keyword:
                self._named[keyword] = made
            else:
                self._positional.append(made)
        self._kept = [(tensor, tensor.clone()) for tensor in _flat(restored)]
        self.restores = bool(self._kept)

    def __call__(self) -> None:
        """Put back what it writes into, and call it."""
        self.restore()
        self._call(*self._positional, **self._named)

    def restore(self) -> None:
        """Only put back what it writes into."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)

    def _made(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return [self._made(item) for item in argument]
        if not isinstance(argument, dict):
            return argument
        kind = next(iter(argument)) if len(argument) == 1 else ""
        value = argument.get(kind)
        if kind == "v":
            return self._tensors.of(str(value))
        if kind == "device":
            return torch.device("cpu" if value == "cpu" else self._device)
        if kind == "complex" and isinstance(value, list):
            return complex(*value)
        if kind in _NAMED:
            return _NAMED[kind](str(value))
        raise InputError(f"an argument was recorded only as {argument}", where=self._name, do=_DO)


class _Tensors:
    """Tensors by value id; those of one storage share it, as they did."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]], device: str, seed: int, name: str) -> None:
        self._values, self._device, self._name = values, device, name
        self._generator = torch.Generator().manual_seed(seed)
        self._storages: dict[tuple[int, str], torch.Tensor] = {}
        self._bound = _index_bound(values)
        if sum(extent(value) * _dtype(value).itemsize for value in values.values()) > MOST_BYTES:
            raise InputError(f"its inputs hold more than {MOST_BYTES >> 30} GiB", where=name, do=_DO)

    def of(self, value_id: str) -> torch.Tensor:
        value = self._values.get(value_id)
        if value is None or value.get("shape") is None:
            raise InputError(f"nothing was recorded of value {value_id}", where=self._name, do=_DO)
        key = (value["storage"], value["dtype"])
        if key not in self._storages:
            together = [v for v in self._values.values() if (v["storage"], v["dtype"]) == key]
            filled = self._fill(max(map(extent, together)), together)
            self._storages[key] = filled if value["device"] == "cpu" else filled.to(self._device)
        return self._storages[key].as_strided(value["shape"], value["stride"], value["offset"])

    def _fill(self, elements: int, values: list[Mapping[str, Any]]) -> torch.Tensor:
        dtype, generator = _dtype(values[0]), self._generator
        if dtype == torch.bool:
            flat = torch.randint(0, 2, (elements,), generator=generator).bool()
        elif dtype.is_complex:
            flat = torch.randn(elements, generator=generator, dtype=torch.complex64).to(dtype)
        elif dtype.is_floating_point:
            flat = torch.randn(elements, generator=generator)
            if values[0].get("role") == "optimizer_state":
                flat = flat.abs()  # second moments, counts of steps
            flat = flat.to(dtype)
        else:
            bound = min(self._bound, torch.iinfo(dtype).max)
            flat = torch.randint(0, bound, (elements,), generator=generator).to(dtype)
        for value in values:
            if value.get("path"):
                flat.as_strided(value["shape"], value["stride"], value["offset"]).copy_(_read(value, dtype))
        return flat


def _read(value: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """Contents that the record kept: elements in the order of the shape."""
    count = 1
    for length in value["shape"]:
        count *= length
    try:
        kept = torch.from_file(value["path"], shared=False, size=count, dtype=dtype)
    except RuntimeError as error:
        raise InputError(f"its contents cannot be read: {error}", where=value["path"], do=_DO) from error
    return kept.view(value["shape"])


def resolve(name: str) -> Any:
    """The operator of aten that a record names; never one that takes the name of a file, or prints.

    Args:
        name: ``aten.addmm.default``.

    Raises:
        InputError: it is no such operator, or this torch has none of that name.
    """
    if not _NAME.fullmatch(name):
        raise InputError("is no operator of aten", where=name, do=_DO)
    _, packet, overload = name.split(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise InputError(f"torch {torch.__version__} has no such operator", where=name, do="use the job's torch")
    if any(argument.name in ("filename", "f") for argument in found._schema.arguments):
        raise InputError("opens files", where=name, do=_DO)
    if packet == "_print":
        raise InputError("prints", where=name, do=_DO)
    return found


def _is_keyword(argument: Any) -> bool:
    return isinstance(argument, dict) and set(argument) == {"name", "value"}


def _flat(made: list[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for item in made:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, list):
            found += _flat(item)
    return found


def extent(value: Mapping[str, Any]) -> int:
    """Elements of the storage, up to the last that a value of this `offset`, `shape` and `stride` shows."""
    shape, stride = value["shape"], value["stride"]
    if 0 in shape:
        return int(value["offset"])
    return int(value["offset"] + 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)))


def _index_bound(values: Mapping[str, Mapping[str, Any]]) -> int:
    """Indices below this are inside every tensor beside them."""
    others = [value["shape"] for value in values.values() if _dtype(value).is_floating_point]
    lengths: list[int] = [n for shape in others for n in shape]
    return max(1, min(lengths, default=2))


def _dtype(value: Mapping[str, Any]) -> torch.dtype:
    dtype: torch.dtype = _of_torch(value["dtype"], torch.dtype)
    return dtype


def _of_torch(name: str, kind: type) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise InputError(f"torch has no {kind.__name__} {name}", where="record", do=_DO)
    return found
