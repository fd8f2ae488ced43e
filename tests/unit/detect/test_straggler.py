from __future__ import annotations

from dataclasses import replace

import pytest

from magneton_dist.detect import straggler
from magneton_dist.records.audit import Corroboration

from .conftest import summary


def late(culprit: int, count: int, seconds: float):  # type: ignore[no-untyped-def]
    return {"culprit": culprit, "count": count, "exposed_wait_s": seconds, "wait_s": seconds}


def run(own_of_2: int = 0):  # type: ignore[no-untyped-def]
    """Ranks 0 and 1 wait for rank 2 in 40 calls each, for 1 s and 2 s; rank 2 waited in `own_of_2` calls."""
    return [
        summary(0, {"working/compute": 9.0, "working/wait": 1.0}, late(2, 40, 1.0)),
        summary(1, {"working/compute": 8.0, "working/wait": 2.0}, late(2, 40, 2.0)),
        summary(2, {"working/compute": 10.0}, *([late(0, own_of_2, 0.1)] if own_of_2 else [])),
    ]


def test_the_rank_that_keeps_coming_last_is_named(runs) -> None:  # type: ignore[no-untyped-def]
    (finding,) = straggler.alone(runs(run(), run()))
    assert finding.kind == "straggler-wait"
    assert finding.ranks == [2]
    assert finding.evidence["waiting_ranks"] == [0, 1]
    assert finding.evidence["recurrence"] == pytest.approx(1.0)
    assert finding.seconds == pytest.approx(3.0)
    # 3 s of waiting at 124 W instead of idling with the context at 122 W
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(3 * (124 - 122))
    assert finding.where.stack == ["train.py:7 main"]


def test_recurrence_counts_the_calls_in_which_somebody_else_was_last(runs) -> None:  # type: ignore[no-untyped-def]
    (finding,) = straggler.alone(runs(run(own_of_2=20)))
    assert finding.evidence["recurrence"] == pytest.approx(40 / 60)  # a call counts once, whoever waited


def test_nobody_is_blamed_when_being_last_goes_round(runs) -> None:  # type: ignore[no-untyped-def]
    fair = [
        summary(0, {"working/compute": 9.0, "working/wait": 1.0}, late(1, 20, 0.5), late(2, 20, 0.5)),
        summary(1, {"working/compute": 9.0, "working/wait": 1.0}, late(0, 20, 0.5), late(2, 20, 0.5)),
        summary(2, {"working/compute": 9.0, "working/wait": 1.0}, late(0, 20, 0.5), late(1, 20, 0.5)),
    ]
    assert straggler.alone(runs(fair)) == []


def test_one_late_call_is_no_culprit(runs) -> None:  # type: ignore[no-untyped-def]
    once = [
        summary(0, {"working/compute": 9.0, "working/wait": 1.0}, late(1, 1, 1.0)),
        summary(1, {"working/compute": 10.0}),
    ]
    assert straggler.alone(runs(once)) == []


def test_whom_others_waited_for_is_told_with_the_reason_why_it_is_not_named(runs) -> None:  # type: ignore[no-untyped-def]
    def waiting(*for_whom):  # type: ignore[no-untyped-def]
        return runs([
            summary(0, {"working/compute": 9.0, "working/wait": 1.0}, *for_whom),
            summary(1, {"working/compute": 9.0, "working/wait": 1.0}, late(2, 1, 0.01)),
            summary(2, {"working/compute": 9.0, "working/wait": 1.0}),
        ])

    rare = straggler.passed_over(waiting(late(1, 3, 1.8), late(2, 1, 0.9)))
    assert rare == [
        "ranks waited 6% of their time for rank 1, which came last in 3 of 4 calls: too few to tell it from chance",
        "ranks waited 3% of their time for rank 2, which came last in 1 of 4 calls: it does not keep coming last",
    ]
    assert straggler.passed_over(waiting(late(1, 40, 1.8))) == []  # that one is named
    assert straggler.passed_over(waiting(late(1, 3, 0.5))) == []


def test_one_late_call_of_many_ranks_is_still_one_call(runs) -> None:  # type: ignore[no-untyped-def]
    once = [summary(rank, {"working/compute": 9.0, "working/wait": 1.0}, late(7, 1, 1.0)) for rank in range(7)]
    assert straggler.alone(runs([*once, summary(7, {"working/compute": 10.0})])) == []


def test_chance_is_that_of_the_group_not_of_the_world(runs) -> None:  # type: ignore[no-untyped-def]
    def pair(one: int, other: int, group: str):  # type: ignore[no-untyped-def]
        return [
            summary(one, {"working/compute": 9.0, "working/wait": 1.0}, late(other, 52, 1.0) | {"group": group}),
            summary(other, {"working/compute": 9.0, "working/wait": 1.0}, late(one, 48, 1.0) | {"group": group}),
        ]

    assert straggler.alone(runs([*pair(0, 1, "left"), *pair(2, 3, "right")])) == []  # 52 of 100: a coin


def test_little_waiting_stays_silent(runs) -> None:  # type: ignore[no-untyped-def]
    little = [
        summary(0, {"working/compute": 9.9, "working/wait": 0.1}, late(1, 40, 0.1)),
        summary(1, {"working/compute": 10.0}),
    ]
    assert straggler.alone(runs(little)) == []


def test_a_culprit_must_be_one_in_every_repeat(runs) -> None:  # type: ignore[no-untyped-def]
    calm = [summary(rank, {"working/compute": 10.0}) for rank in range(3)]
    assert straggler.alone(runs(run(), calm)) == []


def test_what_monitors_say_of_the_wait_is_evidence_and_changes_nothing(runs) -> None:  # type: ignore[no-untyped-def]
    (plain,) = straggler.alone(runs(run()))
    first, second, last = run()
    agrees = Corroboration("agrees", "NVLink 0 to 0.1 GB/s")
    against = Corroboration("contradicts", "NVLink 200 to 210 GB/s")
    first = replace(first, monitors={"working/wait": agrees})
    (said,) = straggler.alone(runs([first, second, last]))
    assert said.evidence["performance_monitors"] == "agrees: NVLink 0 to 0.1 GB/s"
    assert (said.joules, said.title) == (plain.joules, plain.title)
    assert "performance_monitors" not in plain.evidence
    second = replace(second, monitors={"working/wait": against})
    (said,) = straggler.alone(runs([first, second, last]))  # one that contradicts speaks for all
    assert said.evidence["performance_monitors"] == "contradicts: NVLink 200 to 210 GB/s"
