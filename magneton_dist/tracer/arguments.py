"""Arguments of an operator as JSON.

An array: the positional arguments, then each keyword argument as ``{"name": ..., "value": ...}``. A tensor
is ``{"v": value id}``; a dtype, device, layout, memory format or process group is ``{"dtype": "float32"}``
and so on; anything else without a JSON form is ``{"type": its class}``. Long lists and texts are cut, and say
so.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from magneton_dist.tracer.secrecy import WITHHELD, looks_secret

LONGEST_TEXT = 200
LONGEST_LIST = 2048

_PLAIN = (bool, int, type(None))


def as_json(arguments: list[Any]) -> str:
    """`arguments`, of which each is JSON already, as text."""
    return json.dumps(arguments, separators=(",", ":"))


def plain(argument: Any) -> Any:
    """The JSON form of an argument that is neither a tensor nor a list."""
    if isinstance(argument, _PLAIN):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, str):
        return WITHHELD if looks_secret(argument) else argument[:LONGEST_TEXT]
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    for kind, name in _NAMED:
        if isinstance(argument, kind):
            return {name: str(argument).replace("torch.", "", 1)}
    if isinstance(argument, torch.ScriptObject):
        return _script_object(argument)
    return {"type": type(argument).__name__}


def cut(items: list[Any]) -> list[Any]:
    """`items`, or the first of them and how many more there are."""
    more = len(items) - LONGEST_LIST
    return items if more <= 0 else [*items[:LONGEST_LIST], {"more": more}]


_NAMED = (
    (torch.dtype, "dtype"),
    (torch.device, "device"),
    (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)


def _script_object(argument: torch.ScriptObject) -> Any:
    name = argument._type().name()  # type: ignore[attr-defined]
    if name == "ProcessGroup":
        return {"group": torch.distributed.ProcessGroup.unbox(argument).group_name}
    return {"type": name}
