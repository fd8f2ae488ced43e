"""When the main thread fetches from a `DataLoader`: marks `loader_enter` and `loader_exit` around each batch."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from torch.utils.data import dataloader

from magneton_dist.tracer import uncompiled
from magneton_dist.tracer.rows import LOADER_ENTER, LOADER_EXIT
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks

Mark = Callable[..., None]  # takes a name and a detail


def follow(spool: Spool, stacks: Stacks, mark: Mark) -> None:
    """Mark every batch that the main thread asks for; one loader within another counts as part of it."""
    iterator: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
    fetch = getattr(iterator, "__next__", None)
    if fetch is None:
        spool.fault("loader", "this torch's DataLoader has no iterator that could be followed")
        return
    main = threading.main_thread().ident
    inside = False

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:
        nonlocal inside
        if inside or not spool.live or threading.get_ident() != main:
            return fetch(self)
        inside = True
        spool.guard("loader", functools.partial(mark, LOADER_ENTER))
        try:
            return fetch(self)
        finally:
            spool.guard("loader", functools.partial(leave, type(self).__name__))
            inside = False

    def leave(what: str) -> None:
        mark(LOADER_EXIT, {"what": what, "stack_id": stacks.here()})

    uncompiled.passes_through(__next__)
    iterator.__next__ = __next__
