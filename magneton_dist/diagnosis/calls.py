"""Operator calls out of a record, as fresh processes can make them again, and how two of them differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

ALIGNMENT_BYTES = 64  # of a cache line, and of the widest vector
SDPA = "torch.nn.functional.scaled_dot_product_attention"
# What torch's attention chooses among; the names of its own arguments that the chosen operator has, too.
_ATTENTION = ("_scaled_dot_product_",)
_SDPA_ARGUMENTS = {"attn_mask": "attn_mask", "attn_bias": "attn_mask"} | {
    name: name for name in ("dropout_p", "is_causal", "scale")
}


@dataclass(frozen=True)
class Tensor:
    """What a tensor is, without its values. Sizes, strides and the offset are in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    offset: int = 0
    parameter: bool = False

    @property
    def layout(self) -> str:
        """How it lies in memory, in the words that torch has for it, and its alignment where it is odd."""
        order = next((name for name, strides in _orders(self.shape) if _same(self.shape, self.stride, strides)), "")
        off = self.offset * _item_bytes(self.dtype) % ALIGNMENT_BYTES
        return (order or f"strides {list(self.stride)}") + (f", {off} bytes off alignment" if off else "")

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Call:
    """One operator call.

    Attributes:
        operator: as `torch.ops` names it ("aten.mm.default"), or a function of torch's that chooses among operators.
        arguments: JSON as the tracer writes it, tensors numbered in the order of their first mention.
        tensors: by that number.
    """

    operator: str
    arguments: tuple[Any, ...]
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any], values: Mapping[int, Mapping[str, Any]]) -> Call | None:
        """The call of a row of the OPS table; None where it mentions a tensor that was not recorded.

        `values`: rows of the VALUES table by id.
        """
        numbers: dict[int, int] = {}
        arguments = tuple(_renumbered(argument, numbers) for argument in json.loads(row["arguments"]))
        if not numbers.keys() <= values.keys():
            return None
        return cls(row["name"], arguments, tuple(tensor_of(values[value]) for value in numbers))

    def chosen_by(self) -> Call | None:
        """The call of torch's own that leads to this operator, where settings decide; else None."""
        name = self.operator.removeprefix("aten.")
        if not name.startswith(_ATTENTION) or "backward" in name:
            return None
        positional = [a for a in self.arguments if not (isinstance(a, dict) and "name" in a)]
        named = dict(zip(argument_names(self.operator), positional, strict=False))
        named |= {a["name"]: a["value"] for a in self.arguments[len(positional) :]}
        options = [{"name": other, "value": named[name]} for name, other in _SDPA_ARGUMENTS.items() if name in named]
        options = [option for option in options if option["value"] is not None]
        return replace(self, operator=SDPA, arguments=(*(named[n] for n in ("query", "key", "value")), *options))

    def described(self) -> dict[str, Any]:
        """JSON that a fresh process builds the call from."""
        tensors = {str(number): asdict(tensor) for number, tensor in enumerate(self.tensors)}
        return {"operator": self.operator, "arguments": list(self.arguments), "tensors": tensors}

    def name_of(self, number: int) -> str:
        """The argument that tensor `number` is."""
        names = argument_names(self.operator)
        for position, argument in enumerate(self.arguments):
            named = isinstance(argument, dict) and "name" in argument
            if number in _mentioned(argument["value"] if named else argument):
                return argument["name"] if named else names[position] if position < len(names) else str(position)
        return str(number)


def comparable(a: Call, b: Call) -> bool:
    """Can one be turned into the other argument by argument?"""
    return a.operator == b.operator and [_shape(x) for x in a.arguments] == [_shape(x) for x in b.arguments]


@cache
def argument_names(operator: str) -> Sequence[str]:
    """Names of the positional arguments of `operator`; none where this torch does not have it."""
    if operator == SDPA:
        return ("query", "key", "value")
    import torch

    _, packet, overload = (*operator.split(".", 2), "", "")[:3]
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return tuple(argument.name for argument in found._schema.arguments) if found is not None else ()


def _renumbered(argument: Any, numbers: dict[int, int]) -> Any:
    if isinstance(argument, list):
        return [_renumbered(item, numbers) for item in argument]
    if isinstance(argument, dict) and "v" in argument:
        return {"v": numbers.setdefault(argument["v"], len(numbers))}
    if isinstance(argument, dict) and "name" in argument:
        return {"name": argument["name"], "value": _renumbered(argument["value"], numbers)}
    return argument


def _mentioned(argument: Any) -> Iterator[int]:
    """Numbers of the tensors in an argument."""
    if isinstance(argument, list):
        for item in argument:
            yield from _mentioned(item)
    elif isinstance(argument, dict) and "v" in argument:
        yield argument["v"]


def _shape(argument: Any) -> Any:
    """What must agree for two arguments to stand in each other's place."""
    if isinstance(argument, dict) and "name" in argument:
        return argument["name"], _shape(argument["value"])
    return list(_mentioned(argument))


def tensor_of(row: Mapping[str, Any]) -> Tensor:
    """The tensor of a row of the VALUES table."""
    return Tensor(
        shape=tuple(row["shape"]), stride=tuple(row["stride"]), dtype=row["dtype"], device=row["device"] or "cpu",
        offset=row["offset"], parameter=row["role"] == "parameter",
    )  # fmt: skip


def _item_bytes(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


def _orders(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Layouts that have a name, and their strides."""
    dims = len(shape)
    yield "contiguous", _dense(shape, tuple(range(dims)))
    if dims in (4, 5):
        yield f"channels_last{'_3d' if dims == 5 else ''}", _dense(shape, (0, *range(2, dims), 1))
    if dims >= 2:
        yield "transposed", _dense(shape, (*range(dims - 2), dims - 1, dims - 2))


def _dense(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def _same(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Do these strides reach the same elements? Those of dimensions of length 1 are arbitrary."""
    return all(size == 1 or a == b for size, a, b in zip(shape, one, other, strict=True))
