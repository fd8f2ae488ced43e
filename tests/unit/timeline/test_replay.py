"""Steps replayed with other durations, on schedules small enough to draw."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.records.operations import OPERATIONS
from magneton_dist.timeline.replay import Replay

S = 1_000_000_000


def replay(*rows: tuple[Any, ...]) -> Replay:
    """Rows: worker (stage), op, start s, end s, call; step 0, one data-parallel rank."""
    full = [(0, 0, stage, op, a * S, b * S, call, op in ("send", "recv")) for stage, op, a, b, call in rows]
    return Replay(pl.DataFrame(full, schema=OPERATIONS.schema, orient="row"))


def test_a_receiver_waits_for_the_sender_and_the_transfer_takes_its_time() -> None:
    # stage 0 computes 4 s, sends for 1 s; stage 1 has waited since 0 and computes 2 s more
    run = replay((0, "compute", 0, 4, None), (0, "send", 4, 5, "m"), (1, "recv", 0, 5, "m"), (1, "compute", 5, 7, None))
    assert sorted(run.durations_s.tolist()) == [1, 1, 2, 4]
    assert run.step_seconds(run.durations_s).tolist() == [7]
    # ideal: both compute for the mean of 3 s
    assert run.step_seconds(run.ideal_s).tolist() == [7]


def test_a_slow_worker_slows_a_collective() -> None:
    # workers compute 6, 2 and 1 s, then all reduce for 1 s: 7 s; with the mean of 3 s each, 4 s
    run = replay(
        (0, "compute", 0, 6, None), (1, "compute", 0, 2, None), (2, "compute", 0, 1, None),
        (0, "reduce", 6, 7, "r"), (1, "reduce", 2, 7, "r"), (2, "reduce", 1, 7, "r"),
    )  # fmt: skip
    assert run.slowdown() == pytest.approx(7 / 4)
    assert run.slowdown(pl.col("stage") == 0) == pytest.approx(7 / 4)
    assert run.slowdown(pl.col("stage") == 1) == pytest.approx(1.0)
    assert run.slowdown(pl.col("op") == "reduce") == pytest.approx(1.0)


def test_messages_without_computation_between_them_run_side_by_side() -> None:
    # both stages send first and receive then: in turn they would wait for each other for ever
    run = replay(
        (0, "compute", 0, 1, None), (0, "send", 1, 3, "down"), (0, "recv", 1, 3, "up"),
        (1, "compute", 0, 2, None), (1, "send", 2, 3, "up"), (1, "recv", 2, 3, "down"),
    )  # fmt: skip
    assert run.step_seconds(run.durations_s).tolist() == [3]


def test_a_circle_is_refused() -> None:
    run = replay((0, "a", 0, 1, "x"), (0, "b", 1, 2, "y"), (1, "b", 0, 1, "y"), (1, "a", 1, 2, "x"))
    with pytest.raises(RecordError, match="wait for each other in a circle"):
        run.slowdown()
