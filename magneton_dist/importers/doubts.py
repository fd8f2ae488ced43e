"""What is wrong or odd about a trace, in words: what was mended or dropped, what its events do not tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from magneton_dist.importers.columns import Columns
from magneton_dist.importers.device import outlasting_words
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.extent import Extent
from magneton_dist.importers.fields import NONE

MOST_UNLAUNCHED = 0.1  # of the activities, after the first whose launch is known: those before were launched earlier
MOST_NAME = 60  # characters


def of(
    stream: EventStream, columns: Columns, device: pl.DataFrame, outlasting: int, extent: Extent
) -> list[str]:
    """One line for each doubt about the trace that was read from `stream` into `columns`.

    Args:
        device: its activities, by start, with `issue_ns` (null: launch not seen).
        outlasting: how many of them were mended by `device.within_streams`.
        extent: of all its events.
    """
    counts = (("mended", stream.mended), ("dropped", stream.dropped), ("dropped", columns.lost))
    lines = [f"{how} {counted(count)}" for how, count in counts if count]
    lines += [outlasting_words(outlasting)] if outlasting else []
    return [*lines, *_untold(columns, device), *_alone(columns, extent)]


def counted(reasons: Mapping[str, int]) -> str:
    """Events by reason, in words."""
    return ", ".join(f"{count} event(s) with {reason}" for reason, count in sorted(reasons.items()))


def _untold(columns: Columns, device: pl.DataFrame) -> list[str]:
    """What the activities do not tell."""
    lines, count = [], device.height
    if columns.unnamed:
        lines.append(f"{columns.unnamed} of {count} activities have no name, so none of them counts as a collective")
    if columns.unplaced:
        lines.append(
            f"{columns.unplaced} of {count} activities have no device or no stream: the pid and tid of their events "
            "are used instead"
        )
    unseen = device["issue_ns"].is_null().to_numpy()
    seen = np.flatnonzero(~unseen)
    unlaunched = int(unseen[seen[0] :].sum()) if len(seen) else count
    if unlaunched > MOST_UNLAUNCHED * count:
        lines.append(
            f"the launches of {unlaunched} of {count} activities are not in the trace: why the device idled before "
            "them is not known"
        )
    return lines


def _alone(columns: Columns, extent: Extent) -> list[str]:
    """One event that makes the trace far longer than all others do."""
    alone = extent.alone()
    if alone is None:
        return []
    (name, rest_ns), (start, end) = alone, extent.span_ns()
    who = "a call of the runtime" if name == NONE else columns.names.texts()[name][:MOST_NAME]
    return [
        f"it is {(end - start) / 1e9:.3g} s long, and without one event {rest_ns / 1e9:.3g} s: if the times of that "
        f"one are wrong, so are most figures ({who})"
    ]
