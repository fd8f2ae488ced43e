"""magneton-dist: where the joules of a distributed training job went, why, and what to change."""

from __future__ import annotations

from importlib import import_module

# Imported on first use: a training script that only wants `step` must not pay for polars.
_HOME = {"load": "magneton_dist.records.store"}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
