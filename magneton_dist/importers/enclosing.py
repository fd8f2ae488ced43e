"""Which interval of a thread an instant lies in: the innermost of the calls that were open then."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

DEEPEST = 256  # siblings and levels that are looked back over


def innermost(spans: pl.DataFrame, thread: Ints, at: Ints) -> Ints:
    """Row of the innermost span that holds each instant on its thread; -1 where none does.

    Args:
        spans: start_ns, end_ns, thread; nested as calls are.
        thread, at: of each instant.
    """
    found = np.full(len(at), -1, np.int64)
    if not len(at) or not spans.height:
        return found
    order = spans.select("thread", "start_ns", "end_ns").with_row_index("row")
    order = order.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    row = order["row"].to_numpy().astype(np.int64)
    threads, starts, ends = (order[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    first = np.searchsorted(threads, thread, side="left")
    behind = np.searchsorted(threads, thread, side="right")
    nearest = np.full(len(at), -1, np.int64)
    for t in np.unique(thread):
        mine = np.flatnonzero(thread == t)
        begin, end = int(first[mine[0]]), int(behind[mine[0]])
        nearest[mine] = begin + np.searchsorted(starts[begin:end], at[mine], side="right") - 1
    open_ = np.flatnonzero(nearest >= first)
    for _ in range(DEEPEST):
        if not len(open_):
            break
        candidate = nearest[open_]
        held = ends[candidate] >= at[open_]
        found[open_[held]] = row[candidate[held]]
        open_ = open_[~held]
        nearest[open_] -= 1
        open_ = open_[nearest[open_] >= first[open_]]
    return found
