"""What is wrong or odd about a trace, in words: what was mended or dropped, what its events do not tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from magneton_dist.importers.columns import Columns
from magneton_dist.importers.device import outlasting_words
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.extent import Edge
from magneton_dist.importers.fields import NONE
from magneton_dist.importers.frames import Frames

MOST_INSTANTS = 0.1  # of the activities
MOST_NAME = 60  # characters
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
    if frames.unseen and columns.captures:
        lines.append(
            f"{frames.unseen} of {frames.kernels} launches have no kernel in the trace: taken for those of the CUDA "
            "graphs that were captured"
        )
    elif frames.unseen:
        lines.append(f"{frames.unseen} of {frames.kernels} kernels that were launched are not in the trace")
    if frames.overlapping:
        lines.append(
            f"{frames.overlapping} of {count} activities last beyond the end of a later one of their stream, too many "
            "to be mistakes: their times are left as they are"
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
    instants = int((frames.device["start_ns"] == frames.device["end_ns"]).sum())
    if instants > MOST_INSTANTS * count:
        lines.append(f"{instants} of {count} activities have no duration: what the device did then is not known")
    if frames.strays is not None:
        start, end = frames.span_ns
        events, first_ns, last_ns = frames.strays
        lines.append(
            f"the trace spans {(end - start) / 1e9:.3g} s, and without {len(events)} event(s) "
            f"{(last_ns - first_ns) / 1e9:.3g} s: if their times are wrong, so are most figures "
            f"({', '.join(_name(columns, event) for event in events)})"
        )
    return lines


def _name(columns: Columns, event: Edge) -> str:
    return "a call of the runtime" if event.name == NONE else columns.names.texts()[event.name][:MOST_NAME]


def _counted(reasons: Mapping[str, int]) -> str:
    """Events by reason, in words."""
    return ", ".join(f"{count} event(s) with {reason}" for reason, count in sorted(reasons.items()))
