"""The cross-rank join on hand-drawn schedules. Times in ms."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pytest

from magneton_dist.records.manifest import Clock
from magneton_dist.records.schema import COLLECTIVES
from magneton_dist.timeline.arrivals import ARRIVALS, GROUPS, join_arrivals, own_arrivals

MS = 1_000_000


def waits(joined: Any, rank: int) -> list[float | None]:
    return [None if w is None else w / MS for w in joined.of(rank)["wait_ns"]]


def column(joined: Any, rank: int, name: str) -> list[Any]:
    return joined.of(rank)[name].to_list()


def two(rank: Any, **how: Any) -> tuple[Any, Any]:
    """Rank 1 arrives 4 ms late at the first and rank 0 3 ms late at the second.

    0:  |==========|      |====|
    1:      |======|   |=======|
        10  14     20  30 33   40
    """
    a, b = rank(0, **how), rank(1)
    a.call(10, 20)
    b.call(14, 20)
    b.call(30, 40)
    a.call(33, 40)
    return a, b


def test_early_rank_waits_for_the_late_one(rank: Any, run: Any) -> None:
    joined = run(list(two(rank))).joined
    assert dict(joined.arrivals.schema) == ARRIVALS.schema
    assert waits(joined, 0) == [4, 0]
    assert waits(joined, 1) == [0, 3]
    assert [t / MS for t in column(joined, 0, "transfer_ns")] == [6, 7]
    assert column(joined, 0, "last_rank") == [1, 0]
    assert column(joined, 0, "culprit") == [1, None]
    assert column(joined, 1, "culprit") == [None, 0]
    assert [t / MS for t in column(joined, 0, "last_arrival_ns")] == [14, 33]
    assert set(joined.arrivals["method"]) == {"durations"}
    assert set(joined.arrivals["matched"]) == {"sequence"}
    assert joined.notes == []


def test_last_arrival_is_on_each_ranks_own_clock(rank: Any, run: Any) -> None:
    joined = run(list(two(rank, ahead=1000.0))).joined
    assert [t / MS for t in column(joined, 0, "last_arrival_ns")] == [1014, 1033]
    assert [t / MS for t in column(joined, 1, "last_arrival_ns")] == [14, 33]


def test_ends_that_differ_need_the_clocks(rank: Any, run: Any) -> None:
    # Rank 0's end is seen 2 ms late: its duration would say 6 ms, the clocks say 4.
    a, b = rank(0), rank(1)
    a.call(10, 22)
    b.call(14, 20)
    joined = run([a, b]).joined
    assert column(joined, 0, "method") == ["clocks"]
    assert waits(joined, 0) == [4]
    assert column(joined, 0, "wait_error_ns") == [0]
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 1_500_000)}).joined
    assert column(joined, 0, "wait_error_ns") == [1_500_000]
    assert column(joined, 0, "culprit") == [1]  # 4 > 2 * 1.5
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 2_100_000)}).joined
    assert waits(joined, 0) == [4]
    assert column(joined, 0, "culprit") == [None]  # 4 < 2 * 2.1
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 7_000_000)}).joined
    assert waits(joined, 1) == [None]  # 6 ms long, known to 14 ms
    assert "less certain than the call is long" in column(joined, 1, "reason")[0]


def test_durations_need_no_clocks(rank: Any, run: Any) -> None:
    # Twenty calls, rank 1 late by n ms at the n-th; its clock is 5 s off and nobody pinged it.
    a, b = rank(0), rank(1, ahead=5000.0)
    for n in range(20):
        a.call(100 * n, 100 * n + 50)
        b.call(100 * n + n, 100 * n + 50)
    joined = run([a, b], {0: Clock(0, 0)}).joined
    assert waits(joined, 0) == list(range(20))
    assert joined.clocks[1].offset_ns == -5000 * MS
    assert [t / MS for t in column(joined, 1, "last_arrival_ns")] == [5000 + 100 * n + n for n in range(20)]


def test_a_rank_nobody_pinged_with_few_calls_is_refused(rank: Any, run: Any) -> None:
    a, b = two(rank, ahead=7.0)
    joined = run([a, b], {1: Clock(0, 0)}).joined
    assert waits(joined, 0) == [None, None]
    assert set(joined.arrivals["method"]) == {"none"}
    assert set(joined.arrivals["reason"]) == {"the ranks' clocks are unknown"}


def test_drift_is_seen_in_the_ends(rank: Any, run: Any) -> None:
    """Rank 1's clock gains 20 us in a second and was pinged to within 5 ms; broadcasts need clocks."""
    a, b = rank(0), rank(1)
    drift = 20e-6
    for n in range(200):
        t = 500.0 * n
        for r, late in ((a, n % 7), (b, n % 5)):
            ahead = 3.0 + drift * t if r is b else 0.0
            r.call(t + late + ahead, t + 20 + ahead)
            # the root sends at 100, the receiver has been there since 90
            r.call(t + (100 if r is a else 90) + ahead, t + 110 + ahead, op="broadcast_", root=0)
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 5 * MS)}).joined
    assert joined.clocks[1].error_ns < 20_000
    own = round((3.0 + 50_000 * (1 + drift)) * MS)
    assert joined.clocks[1].to_common(own) == pytest.approx(50_000 * MS, abs=20_000)
    sent = joined.of(1).filter(pl.col("method") == "clocks")
    assert len(sent) == 200
    assert sent["wait_ns"].to_numpy() == pytest.approx(10 * MS, abs=20_000)
    assert set(sent["culprit"]) == {0}
    both = joined.of(0).filter(pl.col("method") == "durations")
    expected = [max(n % 5 - n % 7, 0) for n in range(200)]
    assert both["wait_ns"].to_numpy() / MS == pytest.approx(expected, abs=0.001)


def test_ping_that_the_ends_contradict_is_kept_and_noted(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1, ahead=30.0)
    for n in range(20):
        a.call(100 * n, 100 * n + 50)
        b.call(100 * n + 5, 100 * n + 50)
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 1 * MS)}).joined
    assert joined.clocks[1].offset_ns == 0
    assert "rank 1" in joined.notes[0]
    assert "ping is kept" in joined.notes[0]


@pytest.mark.parametrize("turn", [8, 1])  # scattered; rising by 0.2 %, as no clock drifts
def test_ping_better_than_the_ends_is_kept(rank: Any, run: Any, turn: int) -> None:
    # Gloo on a busy machine: rank 1's ends are seen up to 2 ms early or late, the ping is good to 0.1 ms.
    a, b = rank(0), rank(1)
    for n in range(21):
        a.call(100 * n, 100 * n + 50)
        b.call(100 * n + 5, 100 * n + 50 + 0.2 * (turn * n % 21 - 10))
    joined = run([a, b], {0: Clock(0, 0), 1: Clock(0, 100_000)}).joined
    assert (joined.clocks[1].offset_ns, joined.clocks[1].error_ns) == (0, 100_000)
    assert joined.notes == []
    assert joined.of(0).filter(pl.col("method") == "clocks")["wait_error_ns"].unique().to_list() == [100_000]


def test_three_ranks_wait_for_the_last(rank: Any, run: Any) -> None:
    ranks = [rank(r) for r in range(3)]
    for r, start in zip(ranks, (10, 13, 11), strict=True):
        r.call(start, 20, size=3)
    joined = run(ranks).joined
    assert [waits(joined, r) for r in range(3)] == [[3], [0], [2]]
    assert [column(joined, r, "culprit") for r in range(3)] == [[1], [None], [1]]
    assert column(joined, 0, "arrived") == [3]


def test_missing_rank_is_no_wait(rank: Any, run: Any) -> None:
    ranks = [rank(0), rank(2)]
    for r, start in zip(ranks, (10, 13), strict=True):
        r.call(start, 20, size=3)
    joined = run(ranks).joined
    assert waits(joined, 0) == [None]
    assert column(joined, 0, "reason") == ["only 2 of 3 ranks recorded the call"]
    assert column(joined, 0, "arrived") == [2]
    assert joined.groups.row(0, named=True)["refused"] == 2
    assert dict(joined.groups.schema) == GROUPS.schema
    assert "2 of 3 ranks" in joined.notes[0]


def test_lone_survivors_group_has_no_wait(rank: Any, run: Any) -> None:
    a = rank(0)
    a.call(10, 20, group="alone", size=1)
    joined = run([a]).joined
    assert waits(joined, 0) == [0]
    assert column(joined, 0, "culprit") == [None]
    assert column(joined, 0, "transfer_ns") == [10 * MS]


def test_group_of_another_size_is_another_group(rank: Any, run: Any) -> None:
    # The same name, of two ranks on one side and of one on the other, is not one collective.
    a, b = rank(0), rank(1)
    a.call(10, 20, group="g", size=2)
    b.call(14, 20, group="g", size=1)
    joined = run([a, b]).joined
    assert waits(joined, 0) == [None]
    assert waits(joined, 1) == [0]


def test_receivers_of_a_broadcast_wait_for_the_root_only(rank: Any, run: Any) -> None:
    # root 1 starts at 14; rank 2 is even later, and nobody waits for it
    ranks = [rank(r) for r in range(3)]
    for r, start in zip(ranks, (10, 14, 17), strict=True):
        r.call(start, 20, size=3, op="broadcast_", root=1)
    joined = run(ranks).joined
    assert [waits(joined, r) for r in range(3)] == [[4], [0], [0]]
    assert [column(joined, r, "culprit") for r in range(3)] == [[1], [None], [None]]


def test_broadcast_needs_its_root_only(rank: Any, run: Any) -> None:
    ranks = [rank(0), rank(1)]
    ranks[0].call(10, 20, size=3, op="broadcast_", root=1)
    ranks[1].call(14, 20, size=3, op="broadcast_", root=1)
    assert waits(run(ranks).joined, 0) == [4]
    joined = run([ranks[0]]).joined
    assert waits(joined, 0) == [None]
    assert column(joined, 0, "reason") == ["the root or sender is not in the record"]


def test_root_of_a_reduce_waits_for_the_last_sender(rank: Any, run: Any) -> None:
    ranks = [rank(r) for r in range(3)]
    for r, start in zip(ranks, (10, 14, 12), strict=True):
        r.call(start, 20, size=3, op="reduce_", root=0)
    joined = run(ranks).joined
    assert [waits(joined, r) for r in range(3)] == [[4], [0], [0]]
    assert column(joined, 0, "culprit") == [1]


def test_receive_waits_for_its_send(rank: Any, run: Any) -> None:
    # Two messages from 0 to 1, one back, each known by its turn between the two.
    a, b = rank(0), rank(1)
    a.call(14, 15, op="send", root=1, seq=None)
    b.call(10, 15, op="recv_", root=0, seq=None)
    b.call(16, 25, op="recv_", root=0, seq=None)
    a.call(20, 21, op="send", root=1, seq=None)
    b.call(30, 31, op="send", root=0, seq=None)
    a.call(22, 31, op="recv_", root=1, seq=None)
    joined = run([a, b]).joined
    assert waits(joined, 0) == [0, 0, 8]
    assert waits(joined, 1) == [4, 4, 0]
    assert column(joined, 1, "culprit") == [0, 0, None]
    assert set(joined.arrivals["matched"]) == {"pair"}
    assert set(joined.arrivals["expected"]) == {2}


def test_receive_from_anyone_is_refused(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    a.call(14, 15, op="send", root=1)
    b.call(10, 15, op="recv_any_source_", root=None)
    joined = run([a, b]).joined
    assert waits(joined, 1) == [None]
    assert column(joined, 1, "reason") == ["the peer of the message is not recorded"]


def test_sequences_that_messages_bumped_are_not_trusted(rank: Any, run: Any) -> None:
    """Gloo: ranks 0 and 1 exchange a message, which bumps their sequence but not rank 2's.

    By sequence, rank 2's second all-reduce (seq 1) would be nobody's, its third (2) the others' second.
    """
    ranks = [rank(r) for r in range(3)]
    for r in ranks:
        r.call(10, 20, size=3, seq=0)
    ranks[0].call(21, 22, size=3, seq=1, op="send", root=1)
    ranks[1].call(21, 22, size=3, seq=1, op="recv_", root=0)
    for n in (1, 2):
        for r, late in zip(ranks, (0, 0, n), strict=True):
            r.call(30 * n + late, 30 * n + 20, size=3, seq=n + (r is not ranks[2]))
    joined = run(ranks).joined
    assert waits(joined, 0) == [0, 0, 1, 2]
    assert waits(joined, 2) == [0, 0, 0]
    assert set(joined.arrivals["matched"]) == {"order", "pair"}
    assert joined.arrivals["confidence"].max() < 1
    assert "matched by order+pair" in joined.notes[0]


def test_sequence_that_pairs_other_operations_is_not_trusted(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    for r, shift, late in ((a, 0, 0), (b, 1, 2)):
        r.call(10 + late, 20, seq=shift)
        r.call(30, 40, seq=1 + shift, op="barrier", bytes=None)
    joined = run([a, b]).joined
    assert waits(joined, 0) == [2, 0]
    assert set(joined.arrivals["matched"]) == {"order"}


def test_sequence_survives_a_hole_in_the_record(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    for n in range(4):
        a.call(100 * n, 100 * n + 50)
        b.call(100 * n + n, 100 * n + 50)
    del b.rows["collectives"][1]
    joined = run([a, b]).joined
    assert waits(joined, 0) == [0, None, 2, 3]
    assert set(joined.arrivals["matched"]) == {"sequence"}


def test_order_does_not_survive_a_hole(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    for n in range(4):
        a.call(100 * n, 100 * n + 50, seq=None)
        b.call(100 * n + n, 100 * n + 50, seq=None)
    del b.rows["collectives"][0]
    joined = run([a, b]).joined
    assert set(joined.arrivals["method"]) == {"none"}
    assert "holes" in joined.groups["reason"][0]


def test_groups_alike_are_noted_in_one_line(rank: Any, run: Any) -> None:
    # by order in 40 groups of both ranks; of another 3 ranks, one of which left no record, 2 calls each of 5 groups
    a, b = rank(0), rank(1)
    for r in (a, b):
        for n in range(40):
            r.call(100 * n, 100 * n + 50, seq=None, group=f"pair {n}")
        for n in range(5):
            r.call(10_000 + 100 * n, 10_000 + 100 * n + 50, seq=n, size=3, group=f"three {n}")
    joined = run([a, b]).joined
    assert joined.groups.height == 45
    order, lost = joined.notes
    assert order == "group 'pair 0' (2 of 2 ranks) and 39 more: calls matched by order, confidence 0.80"
    assert lost.startswith("group 'three 0' (2 of 3 ranks) and 4 more: no wait for 10 of 10 calls: ")


def test_sizes_pair_what_the_order_does_not(rank: Any, run: Any) -> None:
    # No sequence; the ranks issue the sizes 1 and 2 in opposite order.
    a, b = rank(0), rank(1)
    a.call(10, 40, seq=None, bytes=1)
    a.call(11, 30, seq=None, bytes=2)
    b.call(15, 30, seq=None, bytes=2)
    b.call(22, 40, seq=None, bytes=1)
    joined = run([a, b]).joined
    assert waits(joined, 0) == [12, 4]
    assert set(joined.arrivals["matched"]) == {"shape"}
    assert set(joined.arrivals["confidence"]) == {0.5}


def test_calls_that_end_before_a_peer_starts_do_not_line_up(rank: Any, run: Any) -> None:
    # By order the second of rank 0 would be the first of rank 1, which missed one.
    a, b = rank(0), rank(1)
    for n in range(10):
        a.call(100 * n, 100 * n + 50, seq=None)
        b.call(100 * (n + 1), 100 * (n + 1) + 50, seq=None)
    joined = run([a, b]).joined
    assert set(joined.arrivals["method"]) == {"none"}
    assert "do not line up" in joined.groups["reason"][0]


def test_one_impossible_call_refuses_only_itself(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    for n in range(20):
        a.call(100 * n, 100 * n + 50)
        b.call(100 * n + (60 if n == 3 else 1), 100 * n + (70 if n == 3 else 50))
    joined = run([a, b]).joined
    assert waits(joined, 0) == [None if n == 3 else 1 for n in range(20)]
    assert column(joined, 0, "reason")[3] == "it ends before its last rank starts"


def test_pending_call_has_a_wait_but_no_transfer(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    a.call(10, None)
    b.call(14, 20)
    joined = run([a, b]).joined
    assert waits(joined, 0) == [4]
    assert column(joined, 0, "transfer_ns") == [None]
    assert column(joined, 0, "method") == ["clocks"]
    assert column(joined, 1, "transfer_ns") == [6 * MS]


def test_shadow_of_any_member_marks_the_collective(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    a.call(10, 20, origin="join_shadow", zero=True)
    b.call(14, 20)
    a.call(30, 40)
    b.call(30, 40)
    joined = run([a, b]).joined
    assert column(joined, 0, "shadow_peer") == [True, False]
    assert column(joined, 1, "shadow_peer") == [True, False]


def test_group_without_a_size_is_refused(rank: Any, run: Any) -> None:
    a, b = rank(0), rank(1)
    for r in (a, b):
        r.call(10, 20, group=None, size=None, seq=None)
    joined = run([a, b]).joined
    assert set(joined.arrivals["reason"]) == {"the size of its group is not known"}


def test_no_calls_at_all(rank: Any, run: Any) -> None:
    assert run([rank(0), rank(1)]).joined.arrivals.is_empty()
    assert join_arrivals([], {}).arrivals.is_empty()


@pytest.mark.timeout(60)
def test_a_thousand_ranks_in_seconds() -> None:
    """1,024 ranks x 200 calls; rank r is late by r us at every call, so rank 1,023 is everyone's culprit."""
    ranks, calls = 1024, 200
    start = np.arange(calls) * 10 * MS
    tables = []
    for r in range(ranks):
        table = {
            "call_id": np.arange(calls), "group": ["0"] * calls, "group_size": [ranks] * calls,
            "group_rank": [r] * calls, "seq": np.arange(calls), "op": ["allreduce_"] * calls,
            "origin": ["ddp"] * calls, "bytes": [1] * calls, "dtype": ["float32"] * calls,
            "zero_payload": [False] * calls, "root": [None] * calls, "step": [0] * calls,
            "issue_ns": start, "start_ns": start + 1000 * r, "end_ns": start + 5 * MS, "stack_id": [0] * calls,
        }  # fmt: skip
        tables.append(own_arrivals(pl.DataFrame(table, schema=COLLECTIVES.schema), r))
    began = time.process_time()  # CPU time: the machine may be busy
    joined = join_arrivals(tables, {r: Clock() for r in range(ranks)})
    assert time.process_time() - began < 8  # 0.8 s measured
    expected = 1000 * (ranks - 1 - joined.arrivals["rank"].cast(pl.Int64))
    assert (joined.arrivals["wait_ns"] == expected).all()
    assert set(joined.arrivals["culprit"].drop_nulls()) == {ranks - 1}
