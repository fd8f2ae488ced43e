"""What three drawn ranks would take if they were alike."""

from __future__ import annotations

import polars as pl
import pytest

from magneton_dist.detect.counterfactuals import RankRecorded, counterfactuals
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import StateShare
from magneton_dist.records.schema import ACTIVITIES, COLLECTIVES, STEPS
from magneton_dist.timeline.arrivals import join_arrivals, own_arrivals
from magneton_dist.timeline.clocks import RankClock
from magneton_dist.timeline.states import STATES

US = 1_000
WORK, STILL, IDLE = 200.0, 120.0, 100.0  # W


def recorded(*arrive_us: int, gemm_us: tuple[int, ...] = (), watts: bool = True) -> dict[int, RankRecorded]:
    """Ranks that reach the all-reduce of each of three steps of 1 ms after these us; it ends at 300 us on all.

    They compute until then; after it they are idle.
    """
    last = max(arrive_us)
    frames = {}
    for rank, arrive in enumerate(arrive_us):
        calls, states, kernels, steps = [], [], [], []
        for k in range(3):
            at = 1000 * k
            begin, end = (at + arrive) * US, (at + 300) * US
            calls.append((k, "0", len(arrive_us), rank, k, "allreduce_", "user", 8, "float32", None, None, k,
                          begin, begin, end, None))  # fmt: skip
            cuts = [(at, at + arrive, "compute"), (at + arrive, at + last, "wait"), (at + last, at + 300, "transfer"),
                    (at + 300, at + 1000, "idle")]  # fmt: skip
            states += [(a * US, b * US, "working", activity) for a, b, activity in cuts if b > a]
            lasts = gemm_us[k] if rank == 0 and gemm_us else 20
            kernels.append(("cuda:0", 7, "kernel", "gemm", (at + 10) * US, (at + 10 + lasts) * US, None, None, None))
            steps.append((k, at * US, (at + 1000) * US, "kernels", None, None))
        frames[rank] = [
            pl.DataFrame(rows, schema=schema, orient="row")
            for rows, schema in ((calls, COLLECTIVES.schema), (states, STATES.schema), (kernels, ACTIVITIES.schema),
                                 (steps, STEPS.schema))
        ]  # fmt: skip
    exact = {rank: RankClock() for rank in frames}
    joined = join_arrivals([own_arrivals(f[0], rank) for rank, f in frames.items()], exact)
    out = {}
    for rank, (calls_, states_, kernels_, steps_) in frames.items():
        length = (pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9
        seconds = dict(states_.group_by("activity").agg(length).iter_rows())
        draws = {"compute": WORK, "wait": STILL, "transfer": STILL, "idle": IDLE}
        shares = {f"working/{k}": StateShare(s, s * draws[k] if watts else None) for k, s in seconds.items()}
        summary = RankSummary(
            rank=rank, node="", device="cuda:0", window_s=3e-3, states=shares, watt_seconds={}, energy_j=None,
            energy_kind="modelled", energy_source="",
        )  # fmt: skip
        out[rank] = RankRecorded(summary, states_, calls_, joined.of(rank), kernels_, steps_)
    return out


def test_ranks_at_the_medians_pace():
    found, why_not = counterfactuals("trace", recorded(100, 150, 200))
    assert why_not == []
    # all-reduces take 100 us after the last arrival: at 300, 1300, 2300 us; were rank 2 alike, 50 us earlier each
    assert [(c.what, c.kind) for c in found] == [("all ranks alike", "ranks"), ("rank 2", "rank")]
    for c in found:
        assert c.time_s == pytest.approx(2150e-6)
        assert c.saved_s == pytest.approx(150e-6)
        assert c.saved_share == pytest.approx(150 / 2300)
    # rank 2 works 150 us less and everybody waits less; work is what a rank does or idles away before a call
    work = [(300 * WORK + 2100 * IDLE) / 2400, (450 * WORK + 2100 * IDLE) / 2550, (600 * WORK + 2100 * IDLE) / 2700]
    alike = (-150 * work[0] + 300 * STILL) + (150 * STILL) + (150 * work[2])
    alone = (150 * STILL) + (150 * STILL) + (150 * work[2])
    assert [c.saved_j for c in found] == pytest.approx([alike * 1e-6, alone * 1e-6])
    assert {c.energy_kind for c in found} == {"modelled"}


def test_unmeasured_ranks_save_unknown_joules():
    found, _ = counterfactuals("trace", recorded(100, 150, 200, watts=False))
    assert [(c.saved_j, c.energy_kind) for c in found] == [(None, "unmeasured")] * 2


def test_ranks_that_are_alike_have_nothing_to_save():
    assert counterfactuals("trace", recorded(150, 150, 150)) == ([], [])


def test_an_operation_that_is_slow_once():
    # rank 0's kernel takes 120 us in step 1 and 20 us elsewhere, and rank 0 is 100 us late for that step only
    late = recorded(100, 100, 100)
    calls = late[0].collectives
    moved = pl.when(pl.col("step") == 1).then(100 * US).otherwise(0)
    calls = calls.with_columns(pl.col("issue_ns", "start_ns") + moved)
    slow = recorded(100, 100, 100, gemm_us=(20, 120, 20))[0]
    states = pl.DataFrame(
        [(0, 100, "compute"), (100, 300, "transfer"), (300, 1000, "idle"), (1000, 1200, "compute"),
         (1200, 1300, "transfer"), (1300, 2000, "idle"), (2000, 2100, "compute"), (2100, 2300, "transfer"),
         (2300, 3000, "idle")], schema=["start_ns", "end_ns", "activity"], orient="row",
    ).select(pl.col("start_ns") * US, pl.col("end_ns") * US, pl.lit("working").alias("phase"), "activity")  # fmt: skip
    waits = states.with_columns(
        pl.when((pl.col("activity") == "compute") & (pl.col("start_ns") == 1000 * US)).then(1100 * US)
        .otherwise("end_ns").alias("end_ns"),
        pl.when((pl.col("activity") == "transfer") & (pl.col("start_ns") == 1200 * US)).then(1100 * US)
        .otherwise("start_ns").alias("start_ns"),
    )  # fmt: skip
    tables = {0: calls, 1: late[1].collectives, 2: late[2].collectives}
    joined = join_arrivals([own_arrivals(t, r) for r, t in tables.items()], {r: RankClock() for r in tables})
    ranks = {
        r: RankRecorded(late[r].summary, states if r == 0 else waits, t, joined.of(r),
                        (slow if r == 0 else late[r]).activities, late[r].steps)
        for r, t in tables.items()
    }  # fmt: skip
    found = {c.what: c for c in counterfactuals("trace", ranks)[0]}
    assert found["gemm"].kind == "operation"
    assert found["gemm"].saved_s == pytest.approx(100e-6)
    assert found["rank 0"].saved_s == pytest.approx(100e-6)


def test_a_slow_collective():
    # of three transfers that take 200 us, one takes 500 us
    ranks = recorded(100, 100)
    tables, cut = {}, {}
    for r, one in ranks.items():
        longer = pl.when(pl.col("step") == 2).then(300 * US).otherwise(0)
        tables[r] = one.collectives.with_columns(pl.col("end_ns") + longer)
        late = pl.col("start_ns") > 2000 * US
        cut[r] = one.states.with_columns(
            pl.col("end_ns") + pl.when(late & (pl.col("activity") == "transfer")).then(300 * US).otherwise(0),
            pl.col("start_ns") + pl.when(late & (pl.col("activity") == "idle")).then(300 * US).otherwise(0),
        )
    joined = join_arrivals([own_arrivals(t, r) for r, t in tables.items()], {r: RankClock() for r in tables})
    found, _ = counterfactuals("trace", {
        r: RankRecorded(one.summary, cut[r], tables[r], joined.of(r), one.activities, one.steps)
        for r, one in ranks.items()
    })  # fmt: skip
    assert [(c.what, c.kind) for c in found] == [("allreduce_ of group 0", "collective")]
    assert found[0].saved_s == pytest.approx(300e-6)


def test_without_peers_waits_are_nobodys():
    alone = recorded(100, 200)
    calls = alone[0].collectives
    joined = join_arrivals([own_arrivals(calls, 0)], {0: RankClock()})
    one = alone[0]
    only = RankRecorded(one.summary, one.states, calls, joined.of(0), one.activities, one.steps)
    assert counterfactuals("trace", {0: only}) == ([], [])
