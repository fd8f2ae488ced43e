"""Drop-in synchronisation protocols. They need torch only, and work with and without the tracer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magneton_dist.sync.early_exit import EarlyExit

__all__ = ["EarlyExit"]


def __getattr__(name: str) -> object:
    if name == "EarlyExit":
        from magneton_dist.sync.early_exit import EarlyExit

        return EarlyExit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
