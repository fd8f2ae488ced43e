"""States of CPU ranks: drawn schedules with closed forms, a brute-force oracle, lost rows. Times in ms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.records.schema import TABLES
from magneton_dist.timeline.arrivals import ARRIVALS
from magneton_dist.timeline.states import STATES, derived_name, rank_states
from magneton_dist.timeline.sums import derived_seconds, state_seconds
from magneton_dist.timeline.window import PROTOCOL, Window

MS = 1_000_000


def window(start: float, end: float, finished: float | None = None, released: float | None = None) -> Window:
    a, b, c, d = (None if t is None else round(t * MS) for t in (start, end, finished, released))
    assert a is not None
    assert b is not None
    return Window(a, b, c, d)


def sums(states: pl.DataFrame) -> dict[tuple[str, str], float]:
    return {(phase, activity): ns / MS for phase, activity, ns, _ in state_seconds(states).iter_rows()}


def test_a_step_of_two_ranks(rank: Any, run: Any, rows: Any) -> None:
    """Rank 1 arrives 4 ms late; rank 0 computes on for 2 ms after its issue, then blocks.

    0: |--compute 7--|.|==compute 2==wait 2==|==transfer 4==|--compute 4--|
    1: |-------------compute 12-------------|==transfer 4==|--compute 4--|
       10            17 18          20      22             26           30
    """
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.step(0, 10, "warm-up")
        r.step(10, 30)
        r.stamp(0, cpu=0)
        r.stamp(10, cpu=8)
    a.call(18, 26)
    a.stamp(18, cpu=15)
    a.stamp(26, cpu=16, delay=1)  # 1 ms on a core and 1 ms in the queue for one
    a.stamp(30, cpu=20, delay=1)
    b.call(22, 26)
    b.stamp(22, cpu=20)
    b.stamp(26, cpu=20)
    b.stamp(30, cpu=24)
    found = run([a, b])
    assert dict(found.states(0).states.schema) == STATES.schema
    assert rows(found.states(0).states) == [
        (10, 17, "working", "compute"),
        (17, 18, "working", "idle"),
        (18, 20, "working", "overlap"),
        (20, 22, "working", "wait"),
        (22, 26, "working", "transfer"),
        (26, 30, "working", "compute"),
    ]
    assert rows(found.states(1).states) == [
        (10, 22, "working", "compute"),
        (22, 26, "working", "transfer"),
        (26, 30, "working", "compute"),
    ]
    assert found.states(0).contention == pytest.approx(1 / 13)  # of 7 + 2 + 4 wanted
    assert found.states(1).contention == 0


def uneven(rank: Any, batches: tuple[int, int] = (10, 13)) -> list[Any]:
    """A Join with 10 and 13 batches of 10 ms; the last rank to arrive is always rank 1.

    both:   |-- compute 7 --|== transfer 2 ==|- compute 1 -|     while both have batches
    rank 0: |========= shadow 9: wait 7, transfer 2 =======|.|   then, spinning all the while
    """
    ranks = [rank(0), rank(1)]
    for r, own in zip(ranks, batches, strict=True):
        r.stamp(0, cpu=0)
        cpu = 0.0
        for n in range(max(batches)):
            t = 10 * n
            if n < own:
                r.call(t + 7, t + 9, step=n)
                r.stamp(t + 7, cpu=(cpu := cpu + 7))
                r.stamp(t + 9, cpu=cpu)
                r.step(t, t + 10, "warm-up" if n < 3 else "measured")
                r.stamp(t + 10, cpu=(cpu := cpu + 1))
            else:
                if n > own:
                    r.stamp(t, cpu=cpu)
                r.call(t, t + 9, step=own, origin="join_shadow", zero=True)
                r.stamp(t + 9, cpu=(cpu := cpu + 9))
    ranks[0].stamp(130, cpu=cpu)
    return ranks


def test_join_of_10_and_13_batches(rank: Any, run: Any) -> None:
    found = run(uneven(rank))
    assert sums(found.states(0).states) == {
        ("working", "compute"): 7 * 8,
        ("working", "transfer"): 7 * 2,
        ("finished", "wait"): 3 * 7,  # although it wanted a core for all of it
        ("finished", "transfer"): 3 * 2,
        ("finished", "idle"): 3 * 1,
    }
    assert sums(found.states(1).states) == {("working", "compute"): 10 * 8, ("working", "transfer"): 10 * 2}
    by_name = {name: s * 1000 for name, s in derived_seconds(found.states(0).states).items()}
    assert by_name == pytest.approx({"compute": 56, "transfer": 14, "shadow": 27, "done": 3})


def test_finished_rank_that_does_its_own_work_is_not_a_shadow(rank: Any, run: Any, rows: Any) -> None:
    a, b = uneven(rank)
    for call in a.rows["collectives"][10:]:
        call[6] = "user"
    states = run([a, b]).states(0).states
    assert rows(states.filter(pl.col("phase") == "finished"))[:2] == [
        (100, 109, "finished", "overlap"),
        (109, 110, "finished", "idle"),
    ]


def test_released_rank(rank: Any, run: Any, rows: Any) -> None:
    a, b = uneven(rank)
    del a.rows["collectives"][10:]
    a.rows["stamps"] = [s for s in a.rows["stamps"] if s[0] <= 100 * MS]
    a.stamp(103, cpu=83)
    a.mark("exit", 103)
    for n in (10, 11, 12):  # the survivor goes on alone
        b.rows["collectives"][n][1:4] = ["alone", 1, 0]
    found = run([a, b])
    assert rows(found.states(0).states)[-2:] == [(100, 103, "finished", "compute"), (103, 130, "finished", "released")]
    assert sums(found.states(1).states) == {("working", "compute"): 80, ("working", "transfer"): 20}
    # The actor saw the process only 5 ms later: nobody knows what it did on its way out.
    later = found.windows({0: 108 * MS})[0]
    assert rows(found.states(0, later).states)[-2:] == [
        (103, 108, "finished", "unresolved"),
        (108, 130, "finished", "released"),
    ]


def test_transfer_as_soon_as_any_collective_in_flight_has_its_peers(rank: Any, run: Any, rows: Any) -> None:
    # Two groups: of the one issued at 0 the peer comes at 8, of the one issued at 2 at 4.
    a, b = rank(0), rank(1)
    a.call(0, 10, group="x")
    a.call(2, 6, group="y")
    b.call(4, 6, group="y")
    b.call(8, 10, group="x")
    for t in (0, 2, 6, 10):
        a.stamp(t, cpu=0)
    assert rows(run([a, b]).states(0, window(0, 10)).states) == [
        (0, 4, "working", "wait"),
        (4, 6, "working", "transfer"),
        (6, 8, "working", "wait"),
        (8, 10, "working", "transfer"),
    ]


def test_unknown_arrival_is_unresolved_unless_the_rank_computes(rank: Any, run: Any, rows: Any) -> None:
    a = rank(0)
    a.call(0, 10)  # its peer is not in the record
    a.stamp(0, cpu=0)
    a.stamp(10, cpu=3)
    assert rows(run([a]).states(0, window(0, 10)).states) == [
        (0, 3, "working", "overlap"),
        (3, 10, "working", "unresolved"),
    ]


def test_nothing_beyond_the_stamps(rank: Any, run: Any, rows: Any) -> None:
    a = rank(0)
    a.stamp(10, cpu=0)
    a.stamp(20, cpu=10)
    assert rows(run([a]).states(0, window(0, 30)).states) == [
        (0, 10, "working", "unresolved"),
        (10, 20, "working", "compute"),
        (20, 30, "working", "unresolved"),
    ]


def test_without_stamps_everything_is_unresolved(rank: Any, run: Any, rows: Any) -> None:
    states = run([rank(0)]).states(0, window(0, 30))
    assert rows(states.states) == [(0, 30, "working", "unresolved")]
    assert states.contention is None


def test_delay_booked_late_belongs_to_the_piece_it_was_waited_in(rank: Any, run: Any, rows: Any) -> None:
    # Runnable from 10 to 20, charged when it got a core at 20: the piece of 1 ms cannot hold 11.
    a = rank(0)
    for at, cpu, delay in ((0, 0, 0), (10, 10, 0), (20, 10, 0), (21, 11, 10)):
        a.stamp(at, cpu=cpu, delay=delay)
    states = run([a]).states(0, window(0, 21))
    assert rows(states.states) == [(0, 21, "working", "compute")]
    assert states.contention == pytest.approx(10 / 21)


def test_stamps_of_two_threads_may_cross(rank: Any, run: Any, rows: Any) -> None:
    # The thread that read t = 10 read the CPU clock only after the one that read t = 11.
    a = rank(0)
    for at, cpu in ((0, 0), (10, 11), (11, 10.5), (20, 12)):
        a.stamp(at, cpu=cpu)
    assert sums(run([a]).states(0, window(0, 20)).states) == {("working", "compute"): 12, ("working", "idle"): 8}


@pytest.mark.parametrize(("cpu", "delay"), [((0, 5000, 5005), (0, 0, 0)), ((5000, 0, 5), (0, 0, 0))])
def test_counters_that_jump_are_not_believed(rank: Any, run: Any, rows: Any, cpu: Any, delay: Any) -> None:
    a = rank(0)
    for at, c, d in zip((0, 10, 20), cpu, delay, strict=True):
        a.stamp(at, cpu=c, delay=d)
    states = run([a]).states(0, window(0, 20)).states
    assert rows(states) == [
        (0, 10, "working", "unresolved"),
        (10, 15, "working", "compute"),
        (15, 20, "working", "idle"),
    ]


def test_without_a_delay_wanted_is_cpu_time(rank: Any, run: Any, rows: Any) -> None:
    a = rank(0)
    a.stamp(0, cpu=0, delay=None)
    a.stamp(10, cpu=4, delay=None)
    states = run([a]).states(0, window(0, 10))
    assert rows(states.states) == [(0, 4, "working", "compute"), (4, 10, "working", "idle")]
    assert states.contention is None


def test_window_of_no_length(rank: Any, run: Any) -> None:
    assert run([rank(0)]).states(0, window(5, 5)).states.is_empty()


# --- lost rows: what the record no longer shows becomes unresolved, and no other state grows -----------------


def only_unresolved_grew(before: dict[Any, float], after: dict[Any, float]) -> None:
    unresolved = [sum(ms for (_, activity), ms in s.items() if activity == "unresolved") for s in (before, after)]
    assert unresolved[1] > unresolved[0]
    for state in before.keys() | after.keys():
        if state[1] != "unresolved":
            assert after.get(state, 0) <= before.get(state, 0), state


@pytest.mark.parametrize("remainder", range(5))
def test_a_fifth_of_the_stamps_lost(rank: Any, run: Any, remainder: int) -> None:
    whole, torn = uneven(rank), uneven(rank)
    for r in torn:
        r.rows["stamps"] = [s for n, s in enumerate(r.rows["stamps"]) if n % 5 != remainder]
    before, after = run(whole), run(torn)
    for r in (0, 1):
        only_unresolved_grew(sums(before.states(r).states), sums(after.states(r, before.windows()[r]).states))


@pytest.mark.parametrize("remainder", range(5))
def test_a_fifth_of_the_collectives_lost(rank: Any, run: Any, remainder: int) -> None:
    whole, torn = uneven(rank), uneven(rank)
    calls = torn[0].rows["collectives"]
    torn[0].rows["collectives"] = [c for n, c in enumerate(calls) if n % 5 != remainder]
    before, after = run(whole), run(torn)
    for r in (0, 1):  # rank 1 loses the peers of its own calls
        only_unresolved_grew(sums(before.states(r).states), sums(after.states(r, before.windows()[r]).states))


def test_a_whole_segment_lost(rank: Any, run: Any) -> None:
    # Half a second of spool: steps, stamps and collectives from 55 to 75, nothing left that contradicts.
    whole, torn = uneven(rank), uneven(rank)
    for name, at in (("steps", 2), ("stamps", 0), ("collectives", 12)):
        torn[0].rows[name] = [row for row in torn[0].rows[name] if not 55 * MS <= row[at] < 75 * MS]
    before, after = run(whole), run(torn)
    only_unresolved_grew(sums(before.states(0).states), sums(after.states(0, before.windows()[0]).states))


def test_a_lost_step_of_a_job_without_collectives(rank: Any, run: Any, rows: Any) -> None:
    a = rank(0)
    for n in range(4):
        a.step(10 * n, 10 * n + 10)
        a.stamp(10 * n, cpu=8 * n)
    a.stamp(40, cpu=32)
    del a.rows["steps"][1]
    assert rows(run([a]).states(0, window(0, 40)).states)[2] == (10, 20, "working", "unresolved")


def test_calls_left_out_at_the_end_by_the_cap(rank: Any, run: Any, rows: Any) -> None:
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.call(0, 5)
        r.stamp(0, cpu=0)
        r.stamp(5, cpu=0)
        r.stamp(30, cpu=20)
    a.rows["collective_sums"].append(["0", "allreduce_", "ddp", 7, 2, 200, 8 * MS])
    assert rows(run([a, b]).states(0, window(0, 30)).states) == [(0, 30, "working", "unresolved")]
    assert rows(run([a, b]).states(1, window(0, 30)).states)[1] == (5, 25, "working", "compute")


def test_last_call_lost_with_its_stamps_left(rank: Any, run: Any, rows: Any) -> None:
    # The stamps at 10 and 12 are no known call's and no step's: something was in flight.
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.call(0, 5)
        r.call(10, 12)
        for t in (0, 5, 10, 12, 20):
            r.stamp(t, cpu=0)
    del a.rows["collectives"][1]
    assert rows(run([a, b]).states(0, window(0, 20)).states)[1:] == [
        (5, 10, "working", "idle"),
        (10, 20, "working", "unresolved"),
    ]


def test_stamp_at_a_mark_is_no_lost_call(rank: Any, run: Any, rows: Any) -> None:
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.call(0, 5)
        for t in (0, 5, 10):
            r.stamp(t, cpu=0)
        r.mark("exit", 10.5)
    assert rows(run([a, b]).states(0, window(0, 10)).states)[1:] == [(5, 10, "working", "idle")]


def test_call_whose_end_was_never_seen(rank: Any, run: Any, rows: Any) -> None:
    # Nobody waited for the first: it ended somewhere before the next one of its group did.
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.call(2, None)
        r.call(10, 12)
        for t in (0, 2, 10, 12, 20):
            r.stamp(t, cpu=t)
    assert rows(run([a, b]).states(0, window(0, 20)).states) == [
        (0, 2, "working", "compute"),
        (2, 12, "working", "unresolved"),
        (12, 20, "working", "compute"),
    ]


# --- against an oracle that looks at every ns ----------------------------------------------------------------

SPAN = 40
EVENTS = st.lists(
    st.tuples(
        st.integers(0, SPAN), st.integers(0, 15), st.none() | st.integers(-3, 12), st.sampled_from(["ddp", *PROTOCOL])
    ),
    max_size=5,
)  # issue, length, lateness of the last peer (None: unknown), origin


def oracle(t: int, stamps: list[tuple[int, int]], calls: list[tuple[int, int, int | None, str]], w: Window) -> Any:
    """The activity at ns `t`, straight from the definitions."""
    if w.released_ns is not None and t >= w.released_ns:
        return "released"
    flying = [c for c in calls if c[0] <= t < c[1]]
    if any(late is not None and t >= late for *_, late, _ in flying):
        blocked = "transfer"
    else:
        blocked = "unresolved" if any(late is None for *_, late, _ in flying) else "wait"
    finished = w.finished_ns is not None and t >= w.finished_ns
    if flying and finished and all(origin in PROTOCOL for *_, origin in flying):
        return blocked
    for (start, before), (end, after) in pairwise(stamps):
        if start <= t < end:
            edges = [e for call in calls for e in call[:2] if start < e < end]
            if edges:
                return "unresolved"
            if t - start < after - before:
                return "overlap" if flying else "compute"
            return blocked if flying else "idle"
    return "unresolved"


@settings(max_examples=150, deadline=None)
@given(
    EVENTS,
    st.lists(st.tuples(st.integers(0, SPAN), st.floats(0, 1)), max_size=12, unique_by=lambda s: s[0]),
    st.booleans(),
    st.lists(st.integers(0, SPAN), min_size=4, max_size=4),
)
def test_every_ns_is_as_defined(events: Any, stamps: Any, stamped: bool, edges: list[int]) -> None:
    calls = [(a, a + n, None if late is None else a + late, origin) for a, n, late, origin in events]
    times = {t for t, _ in stamps}
    if stamped:  # as a whole record is: every edge has its stamp
        times |= {t for call in calls for t in call[:2]}
    busy = dict(stamps)
    clock, total, last = [], 0, None
    for t in sorted(times):
        total += 0 if last is None else round((t - last) * busy.get(t, 0.5))
        clock.append((t, total))
        last = t
    start, end, finished, released = edges
    start, end = min(start, end), max(start, end) + 1
    w = Window(start, end, *(t if start <= t < end else None for t in (finished, released)))

    tables = {name: table.empty() for name, table in TABLES.items()}
    tables["stamps"] = pl.DataFrame([(t, c, 0) for t, c in clock], schema=TABLES["stamps"].schema, orient="row")
    # a mark explains a stamp that no edge does
    marks = [("explained", t, None) for t, _ in clock]
    tables["marks"] = pl.DataFrame(marks, schema=TABLES["marks"].schema, orient="row")
    fill = {"group": "0", "op": "allreduce_"}
    tables["collectives"] = pl.DataFrame(
        [fill | {"call_id": n, "origin": o, "issue_ns": a, "start_ns": a, "end_ns": b}
         for n, (a, b, _, o) in enumerate(calls)],
        schema=TABLES["collectives"].schema,
    )  # fmt: skip
    arrivals = pl.DataFrame(
        [{"call_id": n, "last_arrival_ns": None if late is None else min(max(late, a), b)}
         for n, (a, b, late, _) in enumerate(calls)],
        schema=ARRIVALS.schema,
    )  # fmt: skip
    states = rank_states(tables, arrivals, w).states

    assert states["start_ns"][0] == start  # a partition of the window
    assert states["end_ns"][-1] == end
    assert (states["start_ns"][1:] == states["end_ns"][:-1]).all()
    assert (states["start_ns"] < states["end_ns"]).all()
    found = {t: (p, s) for a, b, p, s in states.iter_rows() for t in range(a, b)}
    gone = min((t for t in (w.finished_ns, w.released_ns) if t is not None), default=end)
    for t in range(start, end):
        assert found[t] == ("finished" if t >= gone else "working", oracle(t, clock, calls, w)), t


@pytest.mark.parametrize(
    ("phase", "activity", "name"),
    [
        ("finished", "wait", "shadow"), ("finished", "transfer", "shadow"), ("finished", "overlap", "shadow"),
        ("finished", "idle", "done"), ("finished", "compute", "compute"), ("finished", "released", "released"),
        ("working", "wait", "wait"), ("working", "idle", "idle"),
    ],
)  # fmt: skip
def test_names_in_reports(phase: str, activity: str, name: str) -> None:
    assert derived_name(phase, activity) == name
