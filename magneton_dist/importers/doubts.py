"""What is wrong or odd about a trace, in words: what was mended or dropped, what its events do not tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from magneton_dist.importers.columns import Columns
from magneton_dist.importers.device import outlasting_words
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.frames import Frames, name_of

MOST_UNLAUNCHED = 0.1  # of the activities, after the first whose launch is known: those before were launched earlier


def of_stream(stream: EventStream) -> list[str]:
    """What was mended or dropped while reading; a strict reader has raised by then."""
    return [f"{how} {_counted(n)}" for how, n in (("mended", stream.mended), ("dropped", stream.dropped)) if n]


def damage(columns: Columns, frames: Frames) -> list[str]:
    """What was wrong with single events and what became of them; a strict reader refuses the trace for it."""
    lines = [f"dropped {_counted(frames.dropped)}"] if frames.dropped else []
    if frames.outlasting:
        lines.append(outlasting_words(frames.outlasting))
    if columns.unnamed:
        lines.append(f"{columns.unnamed} event(s) on the device have no name, so none of them counts as a collective")
    return lines


def oddities(columns: Columns, frames: Frames) -> list[str]:
    """What may be sound, and yet makes figures doubtful."""
    lines, count = [], frames.device.height
    if frames.unseen:
        lines.append(
            f"{frames.unseen} of {frames.kernels} kernels that were launched are not in the trace"
        )
    if columns.unplaced:
        lines.append(
            f"{columns.unplaced} of {count} activities have no device or no stream: the pid and tid of their events "
            "are used instead"
        )
    unknown = frames.device["issue_ns"].is_null().to_numpy()
    known = np.flatnonzero(~unknown)
    unlaunched = int(unknown[known[0] :].sum()) if len(known) else count
    if unlaunched > MOST_UNLAUNCHED * count:
        lines.append(
            f"the launches of {unlaunched} of {count} activities are not in the trace: why the device idled before "
            "them is not known"
        )
    if frames.alone is not None:
        start, end = frames.span_ns
        rest_ns = frames.alone.end_ns - frames.alone.start_ns
        lines.append(
            f"the trace spans {(end - start) / 1e9:.3g} s, and without one event {rest_ns / 1e9:.3g} s: if the times "
            f"of that one are wrong, so are most figures ({name_of(columns, frames.alone)})"
        )
    return lines


def _counted(reasons: Mapping[str, int]) -> str:
    """Events by reason, in words."""
    return ", ".join(f"{count} event(s) with {reason}" for reason, count in sorted(reasons.items()))
