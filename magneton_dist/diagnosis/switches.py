"""Settings of torch by the names under which the tracer records them: read, and set from text.

Runs in fresh processes only, on whatever torch they have: standard library and torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_BACKENDS = "torch.backends."
_INTERNAL = "torch._C._get_"
_PATH = re.compile(r"torch(\.[A-Za-z_]\w*)+")
_SETTERS: dict[str, Callable[[Any], Any]] = {
    "torch.are_deterministic_algorithms_enabled": lambda on: torch.use_deterministic_algorithms(on),
    "torch.is_deterministic_algorithms_warn_only_enabled": lambda on: torch.use_deterministic_algorithms(
        torch.are_deterministic_algorithms_enabled(), warn_only=on
    ),
    "torch.is_autocast_cache_enabled": lambda on: torch.set_autocast_cache_enabled(on),
    "torch.is_anomaly_enabled": lambda on: torch.autograd.set_detect_anomaly(on),
    "torch.backends.mha.get_fastpath_enabled": lambda on: torch.backends.mha.set_fastpath_enabled(on),
    "torch.backends.cuda.flash_sdp_enabled": lambda on: torch.backends.cuda.enable_flash_sdp(on),
    "torch.backends.cuda.mem_efficient_sdp_enabled": lambda on: torch.backends.cuda.enable_mem_efficient_sdp(on),
    "torch.backends.cuda.math_sdp_enabled": lambda on: torch.backends.cuda.enable_math_sdp(on),
    "torch.backends.cuda.cudnn_sdp_enabled": lambda on: torch.backends.cuda.enable_cudnn_sdp(on),
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": lambda on: (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(on)
    ),
}


@dataclass(frozen=True)
class Switch:
    """One setting: how to read it and how to set it."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def find(name: str) -> Switch | None:
    """The setting recorded as `name`; None when this torch has none of that name that can be set."""
    if not _PATH.fullmatch(name):
        return None
    owner, last = _owner(name)
    if owner is None or not hasattr(owner, last):
        return None
    if name in _SETTERS:
        return Switch(getattr(owner, last), _SETTERS[name])
    if name.startswith(_BACKENDS):
        known = not callable(getattr(owner, last))
        return Switch(lambda: getattr(owner, last), lambda value: setattr(owner, last, value)) if known else None
    setter = getattr(owner, last.replace("get_", "set_", 1), None)
    if name.startswith((_INTERNAL, "torch.get_")) and callable(setter):
        return Switch(getattr(owner, last), setter)
    return None


def _owner(name: str) -> tuple[Any, str]:
    """The object that has the setting, and the last word of its name."""
    *path, last = name.split(".")[1:]
    owner: Any = torch
    for word in path:
        owner = getattr(owner, word, None)
    allowed = name.startswith((_BACKENDS, _INTERNAL)) or not path
    return (owner if allowed else None), last


def apply(settings: Iterable[tuple[str, str]]) -> list[str]:
    """Set what is not as it should be, in this order; returns the names that could not be set."""
    refused = []
    for name, text in settings:
        try:
            switch = find(name)
            if switch is None:
                refused.append(name)
            elif text != str(switch.get()):
                switch.set(_value(text, switch.get()))
        except Exception:  # noqa: BLE001 - another build refuses it in its own way
            refused.append(name)
    return refused


def general_first(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """`settings` in an order in which a general one does not undo a special one."""
    return sorted(settings.items(), key=lambda item: (item[0].startswith(_INTERNAL), item[0].count("."), item[0]))


def read(names: Iterable[str]) -> dict[str, str]:
    """These settings as text, without those that cannot be read."""
    found = {}
    for name in names:
        try:
            switch = find(name)
            if switch is not None:
                found[name] = str(switch.get())
        except Exception:  # noqa: BLE001 - torch refuses to tell when its old and new settings contradict
            continue
    return found


def _value(text: str, current: Any) -> Any:
    """`text` as a value of the kind that `current` is."""
    if isinstance(current, str):
        return text
    if isinstance(current, (bool, int, float, list)):
        return ast.literal_eval(text)
    if isinstance(current, torch.device):
        return text
    return getattr(torch if isinstance(current, torch.dtype) else type(current), text.rpartition(".")[2])
