"""Sums of states and collectives. Times in ms."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.records.manifest import Clock
from magneton_dist.records.schema import TABLES
from magneton_dist.timeline.arrivals import join_arrivals, own_arrivals
from magneton_dist.timeline.states import STATES, rank_states
from magneton_dist.timeline.sums import STEP_SECONDS, WAITS, state_seconds, step_seconds, waits
from magneton_dist.timeline.window import Window

MS = 1_000_000


def test_calls_grouped_by_culprit_and_phase(rank: Any, run: Any) -> None:
    """Rank 0: two calls that wait for rank 1 (4 and 2 ms), one that waits for nobody, a shadow (7 ms), and
    one before the window of which 3 ms reach into it."""
    a, b = rank(0), rank(1)
    for r, starts in ((a, (5, 20, 30, 40, 60)), (b, (5, 24, 32, 39, 67))):
        for n, (start, end) in enumerate(zip(starts, (13, 26, 34, 44, 70), strict=True)):
            shadow = r is a and n == 4
            r.call(start, end, step=n, origin="join_shadow" if shadow else "ddp", zero=shadow, bytes=100 + n)
        for t in sorted({0, *starts, 13, 26, 34, 44, 70}):
            r.stamp(t, cpu=0)
    found = run([a, b])
    window = Window(10 * MS, 70 * MS, 50 * MS)
    states = found.states(0, window).states
    table = waits(a.tables["collectives"], found.joined.of(0), states, window)
    assert dict(table.schema) == WAITS.schema
    by = {(row["culprit"], row["phase"]): row for row in table.iter_rows(named=True)}
    assert set(by) == {(1, "working"), (None, "working"), (1, "finished")}

    late = by[1, "working"]
    assert (late["count"], late["wait_s"], late["transfer_s"]) == (2, pytest.approx(0.006), pytest.approx(0.004))
    assert (late["bytes"], late["first_step"], late["last_step"]) == (101 + 102, 1, 2)
    assert late["exposed_wait_s"] == pytest.approx(0.006)
    assert (late["zero_count"], late["zero_bytes"], late["shadow_peers"]) == (0, 0, 0)

    nobody = by[None, "working"]  # the call of 40 to 44, and the rest of the one of 5 to 13
    assert (nobody["count"], nobody["bytes"]) == (1, 103)
    assert (nobody["transfer_s"], nobody["exposed_transfer_s"]) == (pytest.approx(0.004), pytest.approx(0.007))

    shadow = by[1, "finished"]
    assert (shadow["origin"], shadow["count"], shadow["wait_s"]) == ("join_shadow", 1, pytest.approx(0.007))
    assert (shadow["zero_count"], shadow["zero_bytes"], shadow["shadow_peers"]) == (1, 104, 1)
    assert shadow["stack_id"] == 7


def only_row(found: Any, window: Window) -> dict[str, Any]:
    states = found.states(0, window).states
    return waits(found.ranks[0].tables["collectives"], found.joined.of(0), states, window).row(0, named=True)


def test_wait_behind_compute_is_not_exposed(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    a.call(0, 10)
    b.call(8, 10)
    a.stamp(0, cpu=0)
    a.stamp(10, cpu=5)  # 5 of the 8 ms of waiting are computed away
    row = only_row(run([a, b]), Window(0, 10 * MS))
    assert (row["wait_s"], row["exposed_wait_s"]) == (pytest.approx(0.008), pytest.approx(0.003))
    assert (row["transfer_s"], row["exposed_transfer_s"]) == (pytest.approx(0.002), pytest.approx(0.002))


def test_each_instant_is_charged_to_one_call(rank: Any, run: Any) -> None:
    """Two groups in flight at once; each instant of a state belongs to the earliest call that is in it.

    x: |=====wait 8=====|=2=|        states:  |==wait 6==|transfer 1|wait 1|transfer 2|
    y:   |wait 4|=1=|                          0          6          7      8         10
       0 2      6   7   8  10
    """
    a, b = rank(0), rank(1)
    a.call(0, 10, group="x")
    a.call(2, 7, group="y")
    b.call(6, 7, group="y")
    b.call(8, 10, group="x")
    for t in (0, 2, 7, 10):
        a.stamp(t, cpu=0)
    found, window = run([a, b]), Window(0, 10 * MS)
    table = waits(a.tables["collectives"], found.joined.of(0), found.states(0, window).states, window)
    charged = {row["group"]: (row["exposed_wait_s"], row["exposed_transfer_s"]) for row in table.iter_rows(named=True)}
    assert charged == {"x": pytest.approx((0.007, 0.002)), "y": pytest.approx((0.0, 0.001))}


def test_refused_calls_are_counted(rank: Any, run: Any) -> None:
    a = rank(0)
    a.call(0, 10)
    row = only_row(run([a]), Window(0, 10 * MS))
    assert (row["count"], row["refused"], row["wait_s"], row["culprit"]) == (1, 1, 0, None)


def test_per_step(rank: Any) -> None:
    states = pl.DataFrame(
        [(0, 12, "working", "compute"), (12, 20, "working", "idle"), (20, 30, "finished", "idle")],
        schema=STATES.schema, orient="row",
    )  # fmt: skip
    a = rank(0)
    a.rows["steps"] = [[4, 2, 10, "measured", None, None], [5, 10, 22, "measured", None, None]]
    table = step_seconds(states, a.tables["steps"])
    assert dict(table.schema) == STEP_SECONDS.schema
    assert set(table.select("step", "phase", "activity", "duration_ns").iter_rows()) == {
        (None, "working", "compute", 2), (None, "finished", "idle", 8),
        (4, "working", "compute", 8),
        (5, "working", "compute", 2), (5, "working", "idle", 8), (5, "finished", "idle", 2),
    }  # fmt: skip


SPAN = 60
CALLS = st.lists(
    st.tuples(st.integers(0, SPAN), st.none() | st.integers(0, 20), st.sampled_from(["x", "y"]),
              st.sampled_from(["ddp", "join_shadow"])),
    max_size=6,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(CALLS, min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, 20), st.integers(0, 9)), max_size=10),
    st.lists(st.integers(0, SPAN), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, SPAN), st.integers(0, 10)), max_size=4),
    st.sampled_from(["cpu", "GPU-0"]),
)
def test_sums_are_exact_whatever_the_record(calls: Any, stamps: Any, edges: Any, steps: Any, device: str) -> None:
    """States add up to the window, steps to the states, and exposed times to wait and transfer, in ns."""
    start, end, finished, released = edges
    start, end = min(start, end), max(start, end) + 1
    window = Window(start, end, *(t if start <= t < end else None for t in (finished, released)))
    tables = []
    for rank in (0, 1):
        rows = [
            {"call_id": 2 * n if n > 3 else n, "group": g, "group_size": 2, "seq": n, "op": "allreduce_",
             "group_rank": rank, "origin": o, "bytes": 1, "issue_ns": t, "start_ns": t,
             "end_ns": None if length is None else t + length, "step": 0}
            for n, (t, length, g, o) in enumerate(calls[rank])
        ]  # fmt: skip
        cpu = np.cumsum([c for _, c, _ in stamps], dtype=np.int64)
        stamp_rows = [(t, int(c), d) for (t, _, d), c in zip(sorted(stamps), cpu, strict=True)]
        step_rows = [(n, a, a + length, "measured", None, None) for n, a, length in steps]
        activities = [("GPU-0", 7, "kernel", "k", a, a + length, None, None, None) for _, a, length in steps]
        marks = [("kernels", end, f'{{"start_ns": {start}, "activities": {len(steps) // 2}}}')]
        given_rows = {"stamps": stamp_rows, "steps": step_rows, "activities": activities, "marks": marks}
        table = {name: t.empty() for name, t in TABLES.items()}
        for name, values in given_rows.items():
            table[name] = pl.DataFrame(values, schema=TABLES[name].schema, orient="row")
        table["collectives"] = pl.DataFrame(rows, schema=TABLES["collectives"].schema)
        tables.append(table)
    calls = [own_arrivals(t["collectives"], r) for r, t in enumerate(tables)]
    joined = join_arrivals(calls, {0: Clock(), 1: Clock()})
    states = rank_states(tables[0], joined.of(0), window, device).states

    sums = state_seconds(states)
    assert sums["duration_ns"].sum() == end - start
    apart = tables[0]["steps"].clear()
    assert step_seconds(states, apart)["duration_ns"].sum() == end - start
    table = waits(tables[0]["collectives"], joined.of(0), states, window)
    for activity in ("wait", "transfer"):
        exposed = table[f"exposed_{activity}_s"].sum() * 1e9
        assert exposed == pytest.approx(sums.filter(pl.col("activity") == activity)["duration_ns"].sum(), abs=1e-3)


def test_200_000_calls_in_a_second(rank: Any) -> None:
    """A rank with 200,000 calls and 400,000 stamps: states, sums and waits."""
    n = 200_000
    start = np.arange(n) * 100_000
    calls = pl.DataFrame(
        {"call_id": np.arange(n), "group": "0", "group_size": 2, "group_rank": 0, "seq": np.arange(n),
         "op": "allreduce_", "origin": "ddp", "bytes": 100, "step": np.arange(n) // 200, "issue_ns": start,
         "start_ns": start, "end_ns": start + 50_000, "stack_id": np.arange(n) % 7}
    )  # fmt: skip
    schema = TABLES["collectives"].schema
    columns = [pl.col(c) if c in calls.columns else pl.lit(None).alias(c) for c in schema]
    tables = {name: t.empty() for name, t in TABLES.items()}
    tables["collectives"] = calls.select(*columns).cast(pl.Schema(schema))
    at = np.sort(np.concatenate([start, start + 50_000]))
    tables["stamps"] = pl.DataFrame(
        {"t_ns": at, "cpu_ns": np.arange(2 * n) * 20_000, "delay_ns": np.zeros(2 * n, np.int64)}
    )
    own = own_arrivals(tables["collectives"], 0)
    peer = own.with_columns(pl.lit(1, pl.Int32).alias("rank"), pl.col("start_ns") + 30_000)
    joined = join_arrivals([own, peer], {0: Clock(), 1: Clock()}).of(0)
    window = Window(0, n * 100_000)

    began = time.process_time()  # CPU time: the machine may be busy
    states = rank_states(tables, joined, window).states
    sums = dict(state_seconds(states).select("activity", "duration_ns").iter_rows())
    table = waits(tables["collectives"], joined, states, window)
    elapsed = time.process_time() - began
    # 20 us of 50 in flight and of 50 not are wanted; the peer comes after 30; no stamp ends the last 50
    assert sums == {
        "overlap": 20_000 * n, "wait": 10_000 * n, "transfer": 20_000 * n,
        "compute": 20_000 * (n - 1), "idle": 30_000 * (n - 1), "unresolved": 50_000,
    }  # fmt: skip
    assert table["count"].sum() == n
    assert elapsed < 2.5  # 0.6 s measured
