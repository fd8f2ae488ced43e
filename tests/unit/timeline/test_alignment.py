"""Clocks of one host that are assumed to be exact, and those far apart, aligned by the ends of collectives. In ms."""

from __future__ import annotations

import re
from typing import Any

import pytest

from magneton_dist.records.manifest import Clock
from magneton_dist.timeline.arrivals import Joined, join_arrivals, own_arrivals

MS = 1_000_000
EXACT, PINGED = Clock(), Clock(0, 2 * MS)


def join(made: list[Any], clocks: dict[int, Clock] | None = None, *, assumed: bool = True) -> Joined:
    tables = [own_arrivals(of_rank.tables["collectives"], of_rank.rank) for of_rank in made]
    exact = dict.fromkeys((of_rank.rank for of_rank in made), EXACT)
    return join_arrivals(tables, exact if clocks is None else clocks, assumed=assumed)


def offsets_ms(joined: Joined) -> list[float]:
    return [clock.offset_ns / MS for _, clock in sorted(joined.clocks.items())]


def job(rank: Any, ahead: dict[int, float], ranks: int = 4, calls: int = 20, **how: Any) -> list[Any]:
    """All-reduces in which the last rank comes last; ends are seen up to 6 us apart."""
    made = [rank(r, ahead=ahead.get(r, 0.0)) for r in range(ranks)]
    for n in range(calls):
        for r, of_rank in enumerate(made):
            of_rank.call(n + 0.1 * r, n + 0.5 + 0.002 * ((n + r) % 4), size=ranks, **how)
    return made


@pytest.mark.parametrize("ahead", [-0.3, 1.0, 1000.0, 3_600_000.0])
def test_an_assumed_clock_that_all_ends_contradict_is_aligned_by_them(rank: Any, ahead: float) -> None:
    joined = join(job(rank, {2: ahead}))
    assert offsets_ms(joined) == pytest.approx([0, 0, -ahead, 0], abs=0.01)
    assert joined.of(2)["wait_ns"].to_numpy() / MS == pytest.approx([0.1] * 20, abs=0.02)
    assert set(joined.of(0)["last_rank"]) == {3}
    before, by, after = re.split(r" put its clock | ms off", joined.notes[0])
    assert before == "rank 2: the ends of its collectives"
    assert float(by.replace(",", "")) == pytest.approx(ahead, rel=0.01, abs=0.01)
    assert after.endswith("it is not trusted, and aligned by these ends")


def test_one_that_is_known_to_be_exact_is_trusted(rank: Any) -> None:
    joined = join(job(rank, {2: 1.0}), assumed=False)
    assert offsets_ms(joined) == [0, 0, 0, 0]
    assert not any("its clock" in note for note in joined.notes)


@pytest.mark.parametrize(
    ("ahead", "how"),
    [
        ({1: 1.0}, {"ranks": 2}),  # of two nobody can say which is off
        ({1: 1.0, 2: -2.0}, {"ranks": 3}),  # and a majority must agree
        ({1: 0.15}, {}),  # hardly off
        ({1: 1.0}, {"calls": 7}),  # too few ends
    ],
)
def test_clocks_that_nobody_can_convict_are_kept(rank: Any, ahead: dict[int, float], how: dict[str, int]) -> None:
    joined = join(job(rank, ahead, **how))
    assert set(offsets_ms(joined)) == {0}
    assert not any("its clock" in note for note in joined.notes)


def test_ends_that_vary_say_nothing_of_a_clock(rank: Any) -> None:
    made = [rank(r) for r in range(4)]
    for n in range(20):
        for r, of_rank in enumerate(made):
            of_rank.call(5 * n, 5 * n + 1 + (n % 5 if r == 2 else 0), size=4)  # seen late by 2 ms, more or less
    assert set(offsets_ms(join(made))) == {0}


def test_pairs_and_silent_ranks_convict_nobody(rank: Any) -> None:
    made = [rank(r, ahead=1.0 if r == 1 else 0.0) for r in range(6)]
    for n in range(20):
        for of_rank in made[:2]:
            of_rank.call(n, n + 0.5)
    assert set(offsets_ms(join(made))) == {0}


def test_clocks_that_are_not_exact_convict_nobody(rank: Any) -> None:
    made = job(rank, {1: 1.0, 2: 1.0, 3: 1.0})
    joined = join(made, {0: EXACT, 1: PINGED, 2: PINGED, 3: PINGED})
    assert offsets_ms(joined) == pytest.approx([0, -1, -1, -1], abs=0.01)


def test_clocks_days_apart_that_drift_meet(rank: Any) -> None:
    """An hour of calls, rank 1 three days ahead and 100 ppm fast; nobody pinged it."""
    a, b = rank(0), rank(1, ahead=3 * 86_400_000.0)
    for n in range(60):
        t = 60_000.0 * n
        a.call(t, t + 5)
        b.call((t + 2) * 1.0001, (t + 5) * 1.0001)
    joined = join([a, b], {0: EXACT}, assumed=False)
    assert joined.of(0)["wait_ns"].to_numpy() / MS == pytest.approx([2] * 60, abs=0.02)
    assert joined.clocks[1].error_ns < 20_000
