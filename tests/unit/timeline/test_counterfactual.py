"""Jobs small enough to draw, run again with other durations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magneton_dist.timeline.counterfactual import Pace, Schedule, at_pace, own_steps, pace
from magneton_dist.timeline.states import rank_states
from magneton_dist.timeline.window import Window

MS = 1_000_000


@pytest.fixture
def paces(rank: Any, run: Any) -> Any:
    """Paces of ranks on GPUs: rows of kind, start ms and end ms; the window ends at `end` ms."""

    def made(end: float, *ranks: list[tuple[str, float, float]]) -> list[Pace]:
        made = []
        for r, activities in enumerate(ranks):
            one = rank(r)
            one.step(0, end, "kernels")
            for kind, start, until in activities:
                one.activity("collective" if kind == "reduce" else kind, start, until)
                if kind == "reduce":
                    one.call(start, until, size=len(ranks))
            one.mark("kernels", end + 1, f'{{"start_ns": 0, "activities": {len(activities)}}}')
            made.append(one)
        job = run(made)
        joined = job.joined
        window = Window(0, round(end * MS))
        return [
            pace(one.rank, one.tables["collectives"], joined.of(one.rank),
                 rank_states(one.tables, joined.of(one.rank), window, "GPU-0").states)
            for one in made
        ]  # fmt: skip

    return made


def lengths(schedule: Schedule, *changes: dict[int, Pace]) -> list[float]:
    return (schedule.run([{}, *changes]).length / MS).tolist()


def test_a_rank_without_calls(paces: Any) -> None:
    (alone,) = paces(8, [("kernel", 0, 6)])
    assert (own_steps(alone) / MS).tolist() == [6]
    quick = at_pace(alone, np.array([2.0]) * MS)
    assert quick.start.size == 0
    assert lengths(Schedule([alone]), {0: quick}) == [6, 2]


def test_a_slow_rank_and_its_median(paces: Any) -> None:
    # ranks compute 6, 2 and 2 ms, then all reduce for 1 ms and compute 1 ms
    first, *others = paces(
        8,
        [("kernel", 0, 6), ("reduce", 6, 7), ("kernel", 7, 8)],
        [("kernel", 0, 2), ("reduce", 2, 7), ("kernel", 7, 8)],
        [("kernel", 0, 2), ("reduce", 2, 7), ("kernel", 7, 8)],
    )
    schedule = Schedule([first, *others])
    assert (own_steps(first) / MS).tolist() == [6, 1]
    quick = at_pace(first, np.array([2.0, 1.0]) * MS)
    slow = at_pace(others[0], np.array([9.0, 1.0]) * MS)
    assert first.total == 7 * MS
    assert others[0].held.tolist() == [True]
    assert lengths(schedule, {0: quick}, {1: slow}) == [8, 4, 11]
    ran = schedule.run([{}])
    assert (ran.worked / MS).tolist() == [[7, 3, 3]]


def test_a_shorter_transfer(paces: Any) -> None:
    late = [("kernel", 0, 4), ("reduce", 4, 8), ("kernel", 8, 9)]
    both = paces(9, [("kernel", 0, 3), ("reduce", 3, 8), ("kernel", 8, 9)], late)
    assert [p.transfer.tolist() for p in both] == [[4 * MS], [4 * MS]]
    quick = {p.rank: replace(p, transfer=p.transfer / 4) for p in both}
    assert lengths(Schedule(both), quick) == [9, 6]


def test_what_is_hidden_behind_work_costs_nothing(paces: Any) -> None:
    # the reduce ends while the kernel beside it still runs: nobody stands still for it
    both = paces(
        10,
        [("kernel", 0, 1), ("reduce", 1, 5), ("kernel", 2, 10)],
        [("kernel", 0, 4), ("reduce", 4, 5), ("kernel", 4, 10)],
    )
    assert [p.held.tolist() for p in both] == [[False], [False]]
    quick = at_pace(both[1], np.array([1.0, 6.0]) * MS)
    # rank 0 stands still from 1 to 2 ms of nothing: it is its own pace, which nobody else changes
    assert lengths(Schedule(both), {1: quick}) == [10, 10]


def test_unknown_peers_keep_what_they_took(paces: Any) -> None:
    (alone,) = paces(8, [("kernel", 0, 2), ("reduce", 2, 7), ("kernel", 7, 8)])
    schedule = Schedule([replace(alone, role=["own"], key=np.array([-1]), transfer=np.array([5.0 * MS]))])
    assert lengths(schedule) == [8]
