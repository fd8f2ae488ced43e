"""What can be flipped between two variants of an operator call: settings, environment, arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from magneton_dist.diagnosis.calls import Call, Tensor, argument_names, comparable
from magneton_dist.diagnosis.snapshot import UNSET, differences
from magneton_dist.tracer.secrecy import WITHHELD

ENVIRONMENT = "env."
SETTING = "torch."
OPTIMIZER = "torch.optim."  # as an operator: its step
MOST_TYPED = 200  # characters of an argument
_STATES = ("torch.autograd.profiler_enabled",)  # what happened to run, which nothing sets
Kind = Literal["setting", "environment", "argument"]


@dataclass(frozen=True)
class Factor:
    """One difference that can be flipped on its own.

    Attributes:
        kind, name: what it is.
        values: as variant A and as variant B have it, as text.
        with_it: settings that setting this one changes, too: name -> their values in A and in B.
        tensor: number of the tensor it is about; place: of the argument, where it is no tensor.
        aspect: dtype or layout, of a tensor.
    """

    kind: Kind
    name: str
    values: tuple[str, str]
    with_it: tuple[tuple[str, str, str], ...] = ()
    tensor: int | None = None
    aspect: str = ""
    place: int | None = None

    def flipped(self, call: Call, b: Call) -> Call:
        """`call` with this argument as in `b`."""
        if self.place is not None:
            arguments = list(call.arguments)
            arguments[self.place] = b.arguments[self.place]
            return replace(call, arguments=tuple(arguments))
        if self.tensor is None:
            return call
        mine, theirs = call.tensors[self.tensor], b.tensors[self.tensor]
        if self.aspect == "dtype":
            changed = replace(mine, dtype=theirs.dtype)
        else:
            changed = replace(mine, shape=theirs.shape, stride=theirs.stride, offset=theirs.offset)
        tensors = (*call.tensors[: self.tensor], changed, *call.tensors[self.tensor + 1 :])
        return replace(call, tensors=tensors)


def setting_factors(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[list[Factor], list[str]]:
    """Settings and environment that differ, and what differs but cannot be flipped here, by name.

    A variable that was withheld, or that names a file, is not set from a record.
    """
    factors, fixed = [], []
    for name, values in differences({"a": a, "b": b}).items():
        pair = values["a"], values["b"]
        if is_setting(name) and UNSET not in pair:
            factors.append(Factor("setting", name, pair))
        elif name.startswith(ENVIRONMENT) and all(map(_harmless, pair)):
            factors.append(Factor("environment", name.removeprefix(ENVIRONMENT), pair))
        elif not is_setting(name):  # a setting that only one side could read follows from others
            fixed.append(name)
    return factors, fixed


def is_setting(name: str) -> bool:
    """Is `name`, of a record's snapshot, one of torch's settings?"""
    return name.startswith(SETTING) and name not in _STATES


def argument_factors(a: Call, b: Call) -> list[Factor]:
    """Arguments of one operator that differ between two calls that are `comparable`."""
    assert comparable(a, b)
    return [*_tensor_factors(a, b), *_plain_factors(a, b)]


def environment_of(base: Mapping[str, str], settings: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The environment of a variant: `base`, with what the tracer records of it as `settings` have it."""
    kept = {name: value for name, value in base.items() if not name.startswith(prefixes)}
    recorded = {
        name.removeprefix(ENVIRONMENT): value
        for name, value in settings.items()
        if name.startswith(ENVIRONMENT) and _harmless(value)
    }
    return kept | recorded


def _harmless(value: str) -> bool:
    return value != WITHHELD and "/" not in value and "\0" not in value


def _tensor_factors(a: Call, b: Call) -> Iterator[Factor]:
    for number, (mine, theirs) in enumerate(zip(a.tensors, b.tensors, strict=True)):
        name = a.name_of(number)
        if mine.dtype != theirs.dtype:
            yield Factor("argument", f"dtype of {name}", (mine.dtype, theirs.dtype), tensor=number, aspect="dtype")
        if mine.shape != theirs.shape:
            values = (_described(mine), _described(theirs))
            yield Factor("argument", f"shape of {name}", values, tensor=number, aspect="layout")
        elif mine.layout != theirs.layout:
            values = (mine.layout, theirs.layout)
            yield Factor("argument", f"layout of {name}", values, tensor=number, aspect="layout")


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.layout}"


def _plain_factors(a: Call, b: Call) -> Iterator[Factor]:
    names = argument_names(a.operator)
    for place, (mine, theirs) in enumerate(zip(a.arguments, b.arguments, strict=True)):
        if mine == theirs:
            continue
        name = names[place] if place < len(names) else str(place)
        if isinstance(mine, dict) and "name" in mine:
            name, mine, theirs = mine["name"], mine["value"], theirs["value"]
        shown = f"{name} of {a.operator.rpartition('.')[2]}" if a.operator.startswith(OPTIMIZER) else name
        yield Factor("argument", shown, (_typed(mine), _typed(theirs)), place=place)


def _typed(argument: object) -> str:
    """An argument as one types it in Python."""
    if not isinstance(argument, dict) or len(argument) != 1:
        return repr(argument)[:MOST_TYPED]
    ((kind, value),) = argument.items()
    if kind in ("dtype", "layout", "memory_format"):
        return f"torch.{value}"
    if kind == "float":
        return f'float("{value}")'
    text = repr(value) if kind == "device" else repr(complex(*value)) if kind == "complex" else str(value)
    return text[:MOST_TYPED]
