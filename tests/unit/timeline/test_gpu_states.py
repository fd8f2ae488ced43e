"""States of GPU ranks from captured kernels, and their shares carried to other steps. Times in ms."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.timeline.carry import CARRIED, carry_shares
from magneton_dist.timeline.sums import state_seconds
from magneton_dist.timeline.window import Window

MS = 1_000_000
GPU = "GPU-0"


def window(start: float, end: float, finished: float | None = None) -> Window:
    return Window(round(start * MS), round(end * MS), None if finished is None else round(finished * MS))


def captured(rank: Any, start: float, end: float, activities: int) -> None:
    rank.mark("kernels", end, json.dumps({"start_ns": round(start * MS), "activities": activities}))


def one_step(rank: Any) -> list[Any]:
    """A captured step of rank 0; its peer arrives at 8.

    kernels:     |---4---|   |--3--|      |-1-|
                 0       4   5     8      11  12
    collective:           |==========|
                          4.5        10
    """
    a, b = rank(0), rank(1)
    a.call(4.5, 10)
    b.call(8, 10)
    a.activity("kernel", 0, 3)
    a.activity("kernel", 2, 4, stream=8)  # overlaps the first: counted once
    a.activity("memcpy", 5, 8)
    a.activity("collective", 4.5, 10, stream=9)
    a.activity("kernel", 11, 12)
    captured(a, 0, 13, 5)
    return [a, b]


def test_captured_window(rank: Any, run: Any, rows: Any) -> None:
    states = run(one_step(rank)).states(0, window(0, 13), GPU)
    assert rows(states.states) == [
        (0, 4, "working", "compute"),
        (4, 4.5, "working", "idle"),
        (4.5, 5, "working", "wait"),
        (5, 8, "working", "overlap"),
        (8, 10, "working", "transfer"),
        (10, 11, "working", "idle"),
        (11, 12, "working", "compute"),
        (12, 13, "working", "idle"),
    ]
    assert states.contention is None


def test_uncaptured_collectives_tell_wait_and_transfer_only(rank: Any, run: Any, rows: Any) -> None:
    ranks = one_step(rank)
    ranks[0].rows["activities"].clear()
    ranks[0].rows["marks"].clear()
    assert rows(run(ranks).states(0, window(0, 13), GPU).states) == [
        (0, 4.5, "working", "unresolved"),
        (4.5, 8, "working", "wait"),
        (8, 10, "working", "transfer"),
        (10, 13, "working", "unresolved"),
    ]


def test_finished_rank_is_a_shadow_also_where_it_overlaps(rank: Any, run: Any, rows: Any) -> None:
    states = run(one_step(rank)).states(0, window(0, 13, finished=5), GPU).states
    assert rows(states)[3:6] == [
        (5, 8, "finished", "overlap"),
        (8, 10, "finished", "transfer"),
        (10, 11, "finished", "idle"),
    ]


def test_collective_kernel_without_a_call_is_unresolved(rank: Any, run: Any, rows: Any) -> None:
    a = rank(0)
    a.activity("collective", 2, 6)
    a.activity("kernel", 4, 8)
    captured(a, 0, 10, 2)
    assert rows(run([a]).states(0, window(0, 10), GPU).states) == [
        (0, 2, "working", "idle"),
        (2, 4, "working", "unresolved"),
        (4, 6, "working", "overlap"),
        (6, 8, "working", "compute"),
        (8, 10, "working", "idle"),
    ]


@pytest.mark.parametrize("lost", range(5))
def test_lost_activity_makes_unresolved_grow_and_nothing_else(rank: Any, run: Any, lost: int) -> None:
    whole, torn = one_step(rank), one_step(rank)
    del torn[0].rows["activities"][lost]  # one of five
    sums = (state_seconds(run(r).states(0, window(0, 13), GPU).states) for r in (whole, torn))
    before, after = (dict(s.select("activity", "duration_ns").iter_rows()) for s in sums)
    assert "unresolved" not in before
    assert after["unresolved"] > 0
    assert all(ns <= before.get(activity, 0) for activity, ns in after.items() if activity != "unresolved")


def test_a_mark_that_cannot_be_read(rank: Any, run: Any) -> None:
    a = rank(0)
    a.mark("kernels", 10, '{"activities": 3}')
    with pytest.raises(RecordError, match="kernels"):
        run([a]).states(0, window(0, 10), GPU)


def four_steps(rank: Any) -> list[Any]:
    """Steps of 10 ms, the first captured: compute 4, idle 1, wait 1, overlap 2, transfer 2.

    kernels (step 0 only): |--4--|.     |=2=|
    collective:                     |=1=|=2=|=2=|     the peer comes 3 ms after the start
                           0     4  5   6   8   10
    """
    a, b = rank(0), rank(1)
    for n in range(4):
        t = 10.0 * n
        a.call(t + 5, t + 10)
        b.call(t + 8, t + 10)
        a.step(t, t + 10, "measured")
    a.activity("kernel", 0, 4)
    a.activity("kernel", 6, 8)
    a.activity("collective", 5, 10)
    captured(a, 0, 10, 3)
    return [a, b]


def test_shares_of_the_captured_step_fill_the_others(rank: Any, run: Any) -> None:
    found = run(four_steps(rank))
    carried = carry_shares(found.ranks[0].tables, found.joined.of(0), window(0, 40), GPU)
    assert dict(carried.seconds.schema) == CARRIED.schema
    assert carried.coverage == pytest.approx(1 / 4)
    for step in range(4):
        rows = carried.seconds.filter(pl.col("step") == step)
        assert dict(zip(rows["activity"], rows["seconds"] * 1000, strict=True)) == pytest.approx(
            {"compute": 4, "idle": 1, "wait": 1, "overlap": 2, "transfer": 2}
        )
        assert set(rows["carried"]) == {step > 0}
    assert carried.seconds["seconds"].sum() == pytest.approx(0.040)


def test_a_phase_never_captured_is_not_filled(rank: Any, run: Any) -> None:
    found = run(four_steps(rank))
    carried = carry_shares(found.ranks[0].tables, found.joined.of(0), window(0, 40, finished=20), GPU)
    last = carried.seconds.filter(pl.col("phase") == "finished")
    assert set(last["carried"]) == {False}
    sums = dict(last.group_by("activity").agg(pl.col("seconds").sum()).iter_rows())
    assert sums == pytest.approx({"unresolved": 0.010, "wait": 0.006, "transfer": 0.004})


def test_without_any_capture_nothing_is_carried(rank: Any, run: Any) -> None:
    ranks = four_steps(rank)
    ranks[0].rows["marks"].clear()
    found = run(ranks)
    carried = carry_shares(found.ranks[0].tables, found.joined.of(0), window(0, 40), GPU)
    assert carried.coverage == 0
    assert set(carried.seconds["carried"]) == {False}
    assert carried.seconds["seconds"].sum() == pytest.approx(0.040)
