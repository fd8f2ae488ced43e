from __future__ import annotations

import msgspec
import pytest

from magneton_dist.diagnosis.waits import cause_of_shadow, cause_of_straggling
from magneton_dist.records.audit import (
    Audit,
    Finding,
    Interval,
    Machine,
    Place,
    RankResult,
    StateShare,
    VariantResult,
)

STEPS = 10


def rank(number: int, compute_s: float, idle_s: float = 0.0, contention: float = 0.0, units: float | None = None,
         steps: int = STEPS, device: str = "cpu", loader_s: float = 0.0) -> RankResult:  # fmt: skip
    states = {"working/compute": StateShare(compute_s), "working/idle": StateShare(idle_s)}
    loader = {"loader": loader_s} if loader_s else {}
    return RankResult(number, "node", device, None, states, steps, units, contention, idle_s=loader)


def audit(*ranks: RankResult) -> Audit:
    variant = VariantResult(1, None, None, Interval(1.0), None, list(ranks))
    machine = Machine([], [], "", 1, {})
    return Audit("x", "", machine, "unmeasured", "", {"v": variant}, None, [], [])


def finding(kind: str, number: int) -> Finding:
    return Finding(kind, "", "v", None, "unmeasured", None, 1.0, [number], Place(), {}, "old fix")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("late", "kind"),
    [
        (rank(1, 2.0, units=200.0), "data"),  # twice the tokens, twice the time
        (rank(1, 2.0, units=101.0), "slow rank"),
        (rank(1, 2.0), "slow rank"),
        (rank(1, 2.0, contention=0.5), "busy host"),  # 1.0 s of computing, 1.0 s without a core
        (rank(1, 1.0, idle_s=0.9), "stall"),
        (rank(1, 1.0, idle_s=0.9, loader_s=0.5), "loader"),
        (rank(1, 1.0, idle_s=0.9, loader_s=0.4), "stall"),  # more of it is something else
        (rank(1, 1.0, idle_s=0.9, loader_s=0.5, device="cuda:1"), "loader"),
        (rank(1, 1.0, idle_s=0.9, device="GPU-1"), "late launch"),
        (rank(1, 1.0, idle_s=0.9, device="cuda:1"), "late launch"),  # as a trace names it
    ],
)
def test_what_the_late_rank_does_more_is_the_cause(late: RankResult, kind: str):
    units = None if late.units is None else 100.0
    found = cause_of_straggling(finding("straggler-wait", 1), audit(rank(0, 1.0, units=units), late))
    assert found.cause is not None
    assert found.cause.layer == kind
    assert found.proof == "consistent"
    assert "rank 1" in found.fix


def test_several_late_ranks_are_not_taken_for_one():
    together = msgspec.structs.replace(finding("straggler-wait", 1), ranks=[1, 2])
    found = cause_of_straggling(together, audit(rank(0, 1.0), rank(1, 2.0), rank(2, 2.0)))
    assert (found.cause, found.fix) == (None, "")
    assert "several ranks" in found.lines[0]


def test_where_all_ranks_lack_cores_the_one_with_more_data_is_still_named_for_its_data():
    crowded = rank(1, 8.0, contention=0.75, units=800.0)  # 2 s of computing and 6 s without a core, eight times each
    peers = rank(0, 1.0, contention=0.75, units=100.0)
    found = cause_of_straggling(finding("straggler-wait", 1), audit(peers, crowded))
    assert found.cause is not None
    assert found.cause.layer == "data"


def test_figures_are_per_step():
    late = rank(1, 2.0, contention=0.25, idle_s=0.5)
    found = cause_of_straggling(finding("straggler-wait", 1), audit(rank(0, 1.0), late))
    # 2.0 s in 10 steps, a quarter of it without a core
    assert "rank 1: 150 ms computing, 50 ms idle, 50 ms waiting for a core" in found.lines[0]
    assert "its peers: 100 ms computing" in found.lines[0]
    late = rank(1, 20.0, idle_s=5.0, loader_s=4.0)
    found = cause_of_straggling(finding("straggler-wait", 1), audit(rank(0, 1.0), late))
    assert "rank 1: 2 s computing, 400 ms fetching data, 100 ms otherwise idle" in found.lines[0]


def test_a_rank_that_does_what_its_peers_do_has_no_cause():
    found = cause_of_straggling(finding("straggler-wait", 1), audit(rank(0, 1.0), rank(1, 1.0)))
    assert found.cause is None
    assert found.proof == "none"


def test_a_shadow_comes_of_uneven_steps():
    found = cause_of_shadow(finding("shadow-collective", 0), audit(rank(0, 1.0, steps=7), rank(1, 5.0, steps=46)))
    assert found.cause is not None
    assert (found.cause.layer, found.cause.values) == ("data", {"rank 0": "7 steps", "rank 1": "46 steps"})
    equal = cause_of_shadow(finding("shadow-collective", 0), audit(rank(0, 1.0), rank(1, 5.0)))
    assert equal.cause is None
