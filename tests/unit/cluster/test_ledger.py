from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magneton_dist.cluster.analysis import Announcement, Collected
from magneton_dist.cluster.events import Place, Slot
from magneton_dist.cluster.ledger import Assignment, Ledger, absent, failures, number_ranks
from magneton_dist.cluster.rank_actor import Conditions
from magneton_dist.cluster.spool import Sums
from magneton_dist.cluster.states import Facts, Shape
from magneton_dist.config import Job, Torchrun
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed

TWO_NODES = Shape(nodes=2, per_node=2)


def announcement(rank: int, local_rank: int = 0, world_size: int = 4, pid: int = 0) -> Announcement:
    return Announcement(rank, local_rank, world_size, pid, 1, 0, "cpu", True, f"l{local_rank}-0")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    job = Job(script="t.py", torchrun=Torchrun(nproc_per_node=2, nnodes=2))
    draft = Manifest("audit", "a", 0, "now", 4, ["torchrun"], None, [], {}, {"python": "3"})
    return Ledger(Assignment(draft, False, job, tmp_path, {}, {}, tmp_path, {}, "token", "origin"))


def known(**changes: object) -> Facts:
    ranks = {
        Place(node, local): announcement(2 * node + local, local, pid=100 + 2 * node + local)
        for node in range(2)
        for local in range(2)
    }
    return replace(Facts(TWO_NODES, ranks=ranks, exits={0: 0, 1: 0}), **changes)  # type: ignore[arg-type]


def test_ranks_of_one_job_number_themselves() -> None:
    swapped = {Place(0, 0): announcement(1), Place(1, 0): announcement(0)}
    assert number_ranks(swapped) == {Place(0, 0): 1, Place(1, 0): 0}


def test_processes_that_never_met_are_numbered_by_place() -> None:
    alone = {Place(1, 0): announcement(0), Place(0, 1): announcement(0), Place(0, 0): announcement(0)}
    assert number_ranks(alone) == {Place(0, 0): 0, Place(0, 1): 1, Place(1, 0): 2}


def test_ranks_that_never_announced_themselves_are_named() -> None:
    facts = Facts(TWO_NODES, ranks={Place(0, 0): announcement(0), Place(1, 1): announcement(3)})
    assert absent(facts, 4) == [
        "rank 1: it never announced itself",
        "rank 2: it never announced itself",
    ]


def test_a_whole_run_has_a_whole_manifest(ledger: Ledger) -> None:
    facts = known()
    meter = MeterUsed("nvml", "measured", "NVML", "GPU-0")
    for place in reversed(facts.ranks):  # ranks end in any order
        ledger.collected[place] = (Collected(None, {"collectives": 3}), Conditions((40.0, 50.0), 700.0))
        ledger.summaries[place] = f"summary of {place.node}.{place.local_rank}"
    ledger.meters[Slot(0, 0)] = meter
    ledger.clocks = {0: [Clock(0, 0)], 1: [Clock(100, 10), Clock(120, 10)]}
    outcome = ledger.outcome(facts, {0: "x", 1: "y"})
    manifest = outcome.manifest
    assert outcome.missing == ()
    assert [(rank.rank, rank.local_rank, rank.node) for rank in manifest.ranks] == [
        (0, 0, "x"), (1, 1, "x"), (2, 0, "y"), (3, 1, "y"),
    ]  # fmt: skip
    assert manifest.ranks[0].meter == meter
    assert manifest.ranks[3].truncated == {"collectives": 3}
    assert manifest.ranks[3].temperature_c == (40.0, 50.0)
    assert manifest.clocks == {"x": Clock(0, 0), "y": Clock(110, 20)}
    assert {rank.exit_code for rank in manifest.ranks} == {0}
    assert list(outcome.summaries) == [0, 1, 2, 3]
    assert outcome.summaries[2] == "summary of 1.0"


def test_the_clock_of_a_rank_is_its_node_s_and_unknown_when_not_read(ledger: Ledger) -> None:
    ledger.clocks = {1: [Clock(100, 10)]}
    assert ledger.rank_clocks(known()) == {2: Clock(100, 10), 3: Clock(100, 10)}


def test_what_is_missing_is_said_once_each(ledger: Ledger) -> None:
    facts = known(exits={0: 1, 1: None}, gone=frozenset({1}), missing=("node 1 was lost",), stopped="SIGINT")
    facts = replace(facts, ranks={place: a for place, a in facts.ranks.items() if place != Place(0, 1)})
    ledger.collected[Place(0, 0)] = (Collected(None, missing=["torn"]), Conditions(faults=("a gap",)))
    ledger.sums = {Place(0, 0): Sums(steps=9), Place(1, 0): Sums(steps=8, collectives=16)}
    outcome = ledger.outcome(facts, {0: "x", 1: "y"})
    assert list(outcome.missing) == [
        "node 1 was lost",
        "rank 1: it never announced itself",
        "rank 0: torn",
        "rank 0: a gap",
        "tables of rank 2: lost with its node after 8 steps and 16 collectives",
        "the rest of the run: SIGINT",
    ]
    assert outcome.manifest.missing == list(outcome.missing)
    assert outcome.exit_code == 1


def test_exit_codes_of_ranks_come_from_torchrun_s_report(ledger: Ledger) -> None:
    ledger.output[0] = "  rank : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 101)\n"
    outcome = ledger.outcome(known(exits={0: 1, 1: 143}), {0: "x", 1: "y"})
    assert [rank.exit_code for rank in outcome.manifest.ranks] == [None, -9, None, None]


def test_disturbances_are_said_once(ledger: Ledger) -> None:
    ledger.disturb("audit other ran on x at the same time")
    ledger.disturb("audit other ran on x at the same time")
    ledger.collected[Place(0, 0)] = (Collected(None), Conditions(disturbed=("throttled",)))
    ledger.collected[Place(0, 1)] = (Collected(None), Conditions(disturbed=("throttled",)))
    manifest = ledger.outcome(known(), {0: "x", 1: "y"}).manifest
    assert manifest.disturbed == ["audit other ran on x at the same time", "throttled"]


def test_only_measured_devices_can_be_shared(ledger: Ledger) -> None:
    ledger.meters[Slot(1, 0)] = MeterUsed("nvml", "measured", "NVML", "GPU-0")
    ledger.meters[Slot(1, 1)] = MeterUsed("modelled:h200", "modelled", "", "cpu")
    assert ledger.physical(Slot(1, 0)) == "1/GPU-0"
    assert ledger.physical(Slot(1, 1)) is None
    assert ledger.physical(Slot(0, 0)) is None


def test_failed_ranks_are_named_with_what_became_of_them_and_without_those_that_torchrun_ended() -> None:
    assert failures({0: -15, 1: -9, 2: 0, 3: None}) == ["rank 1: it was killed by SIGKILL"]
    assert failures({0: 3, 1: -15}) == ["rank 0: it ended with exit code 3"]
    assert failures({0: -15, 1: -15}) == ["rank 0: it was killed by SIGTERM", "rank 1: it was killed by SIGTERM"]
    assert failures({0: -40}) == ["rank 0: it was killed by signal 40"]
    assert failures({0: 0, 1: None}) == []
