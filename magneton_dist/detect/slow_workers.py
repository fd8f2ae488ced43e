"""What slow workers, stages and operations of a pipeline-parallel job cost it, from its timeline of operations.

Where no worker is slower than the others, a computation lasts as long as its mean, a communication as its median.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from magneton_dist.detect.counterfactuals import FLOOR_SHARE
from magneton_dist.errors import RecordError
from magneton_dist.records.audit import Counterfactual
from magneton_dist.timeline.replay import Replay

SHOWN_STEPS = 4  # that say which worker or operation is slow
Kind = Literal["ranks", "replica", "stage", "operation"]

_KINDS: dict[str, tuple[Kind, str]] = {
    "dp": ("replica", "data-parallel rank"), "stage": ("stage", "pipeline stage"), "op": ("operation", "operation"),
}  # fmt: skip


def slow_workers(variant: str, operations: pl.DataFrame) -> tuple[list[Counterfactual], list[str]]:
    """What the steps would take were workers as fast as the others, and the same in words.

    Args:
        variant: whose timeline it is.
        operations: schema `records.operations.OPERATIONS`.
    """
    replay = Replay(operations)
    some = range(0, replay.steps, max(1, replay.steps // SHOWN_STEPS))
    by = f"by {len(some)} of {replay.steps} steps"
    try:
        notes = [f"steps take {replay.slowdown():.3f} times what they would were no worker slower than the mean"]
    except RecordError as error:
        return [], [f"what would be saved is not known: {error.what}"]
    for column, (_, what) in _KINDS.items():
        alone = {v: replay.slowdown(pl.col(column) == v, some) for v in operations[column].unique().sort()}
        worst = max(alone, key=lambda v: alone[v])
        notes.append(f"slow {what} {worst} alone makes them take {alone[worst]:.3f} times that ({by})")
    for what, slow in (
        ("the last pipeline stage", replay.last_stage()),
        ("the slowest 3 % of the workers", replay.slowest_workers(steps=some)),
    ):
        notes.append(f"{what} explains {round(100 * replay.explained(slow))} % of what they take more")
    took_s = float(replay.step_seconds(replay.durations_s, some).mean()) * replay.steps
    found = _saved(variant, replay, some, took_s)
    if found:
        notes.append(
            f"what would be saved is of the {replay.steps} steps run again, {took_s:.4g} s together ({by}); "
            "time between steps is not among them"
        )
    return found, notes


def _saved(variant: str, replay: Replay, some: Sequence[int], took_s: float) -> list[Counterfactual]:
    """What the steps would take were a rank, a stage or an operation as fast as the mean, by some of them."""
    took = replay.slowdown(steps=some)
    tried: list[tuple[str, Kind, float]] = [("all workers alike", "ranks", 1.0)]
    for column, (kind, what) in _KINDS.items():
        for value in replay.operations[column].unique().sort():
            tried.append((f"{what} {value}", kind, replay.slowdown(pl.col(column) != value, some)))
    found = [
        Counterfactual(what, kind, variant, took_s * then / took, took_s * (1 - then / took), 1 - then / took)
        for what, kind, then in tried
        if 1 - then / took >= FLOOR_SHARE
    ]
    return sorted(found, key=lambda c: (c.kind != "ranks", -round(c.saved_s, 9), c.what))
