"""magneton-dist: where the joules of a distributed training job went, why, and what to change.

Importing it costs nothing: names are loaded when they are used. `step` and `sync` need torch alone, so that a
training script may use them wherever it runs.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "annotate": "magneton_dist.tracer.annotate",
    "audit": "magneton_dist.offline",
    "compare": "magneton_dist.offline",
    "load": "magneton_dist.records.store",
    "record": "magneton_dist.frontends.record",
    "step": "magneton_dist.tracer.bootstrap",
}

__all__ = ["__version__", "sync", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("magneton_dist.sync")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
