"""The audited window and where each rank's work ends. Times in ms."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from magneton_dist.errors import RecordError
from magneton_dist.timeline.clocks import RankClock
from magneton_dist.timeline.window import Window, audited_windows, own_life

MS = 1_000_000


def steady(rank: Any, number: int, count: int, begin: float = 0.0, ahead: float = 0.0) -> Any:
    """Steps of 10 ms back to back: two warm-up, one traced, the rest measured."""
    r, length = rank(number, ahead), 10.0
    kinds = ["warm-up", "warm-up", "traced"] + ["measured"] * count
    for n, kind in enumerate(kinds[:count]):
        r.step(begin + n * length, begin + (n + 1) * length, kind)
    return r


def windows(run: Any, *ranks: Any, exits: dict[int, int] | None = None) -> dict[int, tuple[float | None, ...]]:
    """(start, end, finished, released) of each rank."""
    found = run(list(ranks)).windows(exits)
    return {r: tuple(None if t is None else t / MS for t in astuple(w)) for r, w in found.items()}


def test_from_the_last_warm_up_to_the_last_step(rank: Any, run: Any) -> None:
    # rank 1 begins 4 ms later: its three unmeasured steps end at 34, its last step at 104
    assert windows(run, steady(rank, 0, 10), steady(rank, 1, 10, begin=4.0)) == {
        0: (34, 104, None, None),  # 4 ms early out of a 10 ms step: a straggler's lead, not an end
        1: (34, 104, None, None),
    }


def test_shared_window_on_each_ranks_own_clock(rank: Any, run: Any) -> None:
    a, b = steady(rank, 0, 10), steady(rank, 1, 10, ahead=500.0)
    assert windows(run, a, b) == {0: (30, 100, None, None), 1: (530, 600, None, None)}


def test_rank_with_fewer_batches_finishes_early(rank: Any, run: Any) -> None:
    assert windows(run, steady(rank, 0, 10), steady(rank, 1, 13)) == {
        0: (30, 130, 100, None),
        1: (30, 130, None, None),
    }


def test_one_batch_fewer_is_fewer(rank: Any, run: Any) -> None:
    assert windows(run, steady(rank, 0, 10, begin=1.0), steady(rank, 1, 11)) == {
        0: (31, 110, 101, None),
        1: (31, 110, None, None),
    }


def test_joins_last_collective_belongs_to_the_window(rank: Any, run: Any) -> None:
    a, b = steady(rank, 0, 10), steady(rank, 1, 13)
    for r in (a, b):
        r.call(131, 135, origin="join_final", op="broadcast_", root=1)
        r.call(200, 210, origin="user")  # what the script does afterwards does not
    assert windows(run, a, b)[0] == (30, 135, 100, None)


def test_rank_without_a_batch_is_finished_from_the_start(rank: Any, run: Any) -> None:
    a, b = rank(0), steady(rank, 1, 13)
    for n in range(13):
        a.call(10 * n, 10 * n + 9, origin="join_shadow")
        b.call(10 * n + 5, 10 * n + 9)
    assert windows(run, a, b)[0] == (30, 130, 30, None)


def test_rank_without_steps_outside_any_protocol_is_working(rank: Any, run: Any) -> None:
    a, b = rank(0), steady(rank, 1, 13)
    a.call(0, 9)
    assert windows(run, a, b)[0] == (30, 130, None, None)


def test_rank_that_finished_in_anothers_warm_up(rank: Any, run: Any) -> None:
    assert windows(run, steady(rank, 0, 1), steady(rank, 1, 13))[0] == (30, 130, 30, None)


def test_released_when_the_process_is_gone(rank: Any, run: Any) -> None:
    a, b = steady(rank, 0, 10), steady(rank, 1, 13)
    a.mark("exit", 105)
    b.mark("exit", 140)  # after the window: never released in it
    assert windows(run, a, b) == {0: (30, 130, 100, 105), 1: (30, 130, None, None)}
    assert windows(run, a, b, exits={0: 112 * MS})[0] == (30, 130, 100, 112)


def test_only_warm_up_steps_are_audited_with_a_note(rank: Any, run: Any) -> None:
    a = steady(rank, 0, 2)
    found, notes = audited_windows({0: own_life(a.tables, 0)}, {})
    assert found[0] == Window(0, 20 * MS)
    assert "warm-up" in notes[0]


def test_job_without_steps_is_audited_whole_with_a_note(rank: Any, run: Any) -> None:
    a = rank(0)
    a.mark("python_start", 5)
    a.call(10, 20)
    a.mark("exit", 50)
    found, notes = audited_windows({0: own_life(a.tables, 0)}, {0: RankClock()})
    assert found[0] == Window(5 * MS, 50 * MS)
    assert "no step" in notes[0]


def test_nothing_recorded_is_an_error(rank: Any) -> None:
    with pytest.raises(RecordError, match="nothing was recorded"):
        own_life(rank(0).tables, 0)


@pytest.mark.parametrize("own", [0, 123_456_789, 10**15])
def test_clock_there_and_back(own: int) -> None:
    clock = RankClock(offset_ns=-987_654_321, error_ns=0, drift=-35e-6, at_ns=10**9)
    assert abs(clock.to_own(clock.to_common(own)) - own) <= 1
