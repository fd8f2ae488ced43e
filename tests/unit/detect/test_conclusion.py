from __future__ import annotations

import os
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from magneton_dist.config import Compare
from magneton_dist.detect.conclusion import RunFacts, conclude
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import Audit
from magneton_dist.records.manifest import Manifest, RankRun
from magneton_dist.records.schema import PARAMETERS

from .conftest import PROFILE, summary
from .test_values import digest

SHADOW = {"origin": "join_shadow", "phase": "finished", "count": 114, "zero_bytes": 6_000_000}
NOISE = [1.0, 1.01, 0.99, 1.005]


def facts(variant: str, repeat: int, ranks: list[RankSummary], params=None, exit_code: int = 0) -> RunFacts:  # type: ignore[no-untyped-def]
    manifest = Manifest(
        "a", variant, repeat, "2026-01-01T00:00:00Z", 2, ["train"], exit_code, [RankRun(0, 0, "host")], {}, {}
    )
    return RunFacts(manifest, {s.rank: s for s in ranks}, {1: PARAMETERS.empty() if params is None else params})


def join(scale: float) -> list[RankSummary]:
    """10 against 48 batches of 0.1 s, tokens told."""
    waiting = {"working/compute": 1.0 * scale, "finished/wait": 3.8 * scale}
    return [
        summary(0, waiting, SHADOW, steps=10, units=10_000.0),
        summary(1, {"working/compute": 4.8 * scale}, steps=48, units=48_000.0),
    ]


def released(scale: float, batches: int = 48) -> list[RankSummary]:
    left = {"working/compute": 1.0 * scale, "finished/released": (batches - 10) * 0.1 * scale}
    return [
        summary(0, left, steps=10, units=10_000.0),
        summary(1, {"working/compute": batches * 0.1 * scale}, steps=batches, units=batches * 1000.0),
    ]


def audit(other, params=(None, None), missing_repeat: bool = False) -> Audit:  # type: ignore[no-untyped-def]
    base = [facts("join", i, join(s), params[0]) for i, s in enumerate(NOISE)]
    rest = [facts("early-exit", i, other(s), params[1]) for i, s in enumerate(reversed(NOISE))]
    if missing_repeat:
        del rest[1]
    return conclude("a", "now", {"join": base, "early-exit": rest}, "join", Compare(time=0.05), PROFILE)


def test_the_machine_of_the_analysis_is_not_said_to_be_the_jobs() -> None:
    elsewhere = facts("join", 0, join(1.0))
    machine = conclude("a", "now", {"join": [elsewhere]}, "join", Compare(), PROFILE).machine
    assert (machine.hosts, machine.cpu, machine.cores) == (["host"], "", 0)
    here = msgspec.structs.replace(elsewhere.manifest, ranks=[RankRun(0, 0, os.uname().nodename)])
    machine = conclude("a", "now", {"join": [replace(elsewhere, manifest=here)]}, "join", Compare(), PROFILE).machine
    assert machine.cores == os.cpu_count()
    assert machine.cpu


def test_join_against_early_exit_is_waste_with_the_ratio_of_the_watts() -> None:
    x = np.ones(20)
    result = audit(released, (digest(x), digest(x)))
    comparison = result.comparison
    assert comparison is not None
    assert comparison.verdict == "waste"
    assert comparison.hungrier == "join"
    # (5.8 * 138 + 3.8 * 74) / (5.8 * 138 + 3.8 * 124)
    assert comparison.energy_ratio is not None
    assert comparison.energy_ratio.mean == pytest.approx(1081.6 / 1271.6, rel=0.002)
    assert result.findings[0].kind == "shadow-collective"
    assert result.variants["early-exit"].values_agree is True
    assert result.variants["join"].energy_per_unit_j is not None
    assert result.variants["join"].energy_per_unit_j.mean == pytest.approx(1271.6 / 58_000, rel=0.01)
    assert result.energy_kind == "modelled"


@pytest.mark.parametrize(
    ("units", "ratio", "said"),
    [(None, 2.0, "a step of the job counts once"), (1000.0, 1.0, "tokens that ranks report are added up")],
)
def test_a_step_of_jobs_of_unequal_numbers_of_ranks_counts_once(units, ratio, said) -> None:  # type: ignore[no-untyped-def]
    def on(ranks: int, name: str) -> list[RunFacts]:
        found = []
        for i, s in enumerate(NOISE):
            of_rank = [summary(rank, {"working/compute": s}, steps=10, units=units) for rank in range(ranks)]
            run = facts(name, i, of_rank)
            found.append(replace(run, manifest=msgspec.structs.replace(run.manifest, world_size=ranks)))
        return found

    result = conclude("a", "now", {"one": on(1, "one"), "two": on(2, "two")}, "one", Compare(time=0.05), PROFILE)
    assert result.comparison is not None
    assert result.comparison.energy_ratio is not None
    assert result.comparison.energy_ratio.mean == pytest.approx(ratio)
    assert any(said in note for note in result.notes)
    assert ("less work" in result.comparison.reason) == (units is not None)


@pytest.mark.parametrize("lost", [0, 1])
def test_what_a_lost_rank_did_is_compared_on_neither_side(lost: int) -> None:
    def runs(name: str, ranks: list[int]) -> list[RunFacts]:
        # rank 1 takes twice the time of rank 0
        of_rank = [
            [summary(r, {"working/compute": s * (1 + r)}, steps=10, units=1000.0) for r in ranks] for s in NOISE
        ]
        return [facts(name, i, found) for i, found in enumerate(of_rank)]

    both = {"a": runs("a", [0, 1]), "b": runs("b", [1 - lost])}
    result = conclude("a", "now", both, "a", Compare(time=0.05), PROFILE)
    told = result.comparison
    assert told is not None
    assert told.energy_ratio is not None
    assert told.saved_j is not None
    # the other rank did the same on both sides, in the same time
    assert (told.energy_ratio.mean, told.time_ratio.mean) == pytest.approx((1.0, 1.0))
    assert told.saved_j.mean == pytest.approx(0.0)
    assert any(f"compared without rank {lost} of b, of which there is no record" in note for note in result.notes)


def test_less_work_is_a_trade_off_however_little_it_burns() -> None:
    result = audit(lambda s: released(s, batches=10))
    assert result.comparison is not None
    assert result.comparison.verdict == "trade-off"


def test_other_values_are_a_trade_off() -> None:
    x = np.ones(20)
    result = audit(released, (digest(x), digest(x * 1.1)))
    assert result.comparison is not None
    assert result.comparison.verdict == "trade-off"
    assert result.variants["early-exit"].values_agree is False


def test_equal_variants_are_no_waste_and_have_no_finding() -> None:
    base = [facts("a", i, released(s)) for i, s in enumerate(NOISE)]
    rest = [facts("b", i, released(s)) for i, s in enumerate(NOISE[1:] + NOISE[:1])]
    result = conclude("a", "now", {"a": base, "b": rest}, "a", Compare(time=0.05), PROFILE)
    assert result.comparison is not None
    assert result.comparison.verdict == "no difference"
    assert result.findings == []


def test_only_repeats_that_both_variants_have_are_paired() -> None:
    result = audit(released, missing_repeat=True)
    assert result.comparison is not None
    assert result.comparison.energy_ratio is not None
    # repeats 0, 2 and 3 of either side, not the first three: the geometric mean of their own ratios
    base = [NOISE[i] * 1271.6 for i in (0, 2, 3)]
    rest = [list(reversed(NOISE))[i] * 1081.6 for i in (0, 2, 3)]
    expected = np.exp(np.mean(np.log(np.array(rest) / np.array(base))))
    assert result.comparison.energy_ratio.mean == pytest.approx(expected)
    assert result.variants["early-exit"].runs == 3


def test_a_variant_without_runs_is_said() -> None:
    base = [facts("a", 0, released(1.0))]
    result = conclude("a", "now", {"a": base, "b": []}, "a", Compare(), PROFILE)
    assert result.comparison is None
    assert result.variants["b"].runs == 0
    assert any("b: no run" in note for note in result.notes)


def test_failed_runs_are_not_compared() -> None:
    base = [facts("a", i, released(s)) for i, s in enumerate(NOISE)]
    rest = [facts("b", i, released(s, batches=12), exit_code=1) for i, s in enumerate(NOISE)]
    result = conclude("a", "now", {"a": base, "b": rest}, "a", Compare(time=0.05), PROFILE)
    assert result.comparison is not None
    assert result.comparison.verdict == "inconclusive"
    assert result.comparison.energy_ratio is None
    assert result.comparison.saved_j is None
    assert result.comparison.reason == "all runs of b failed"


def test_a_failed_repeat_leaves_the_others_to_compare() -> None:
    base = [facts("a", i, released(s)) for i, s in enumerate(NOISE)]
    rest = [facts("b", i, released(s), exit_code=int(i == 2)) for i, s in enumerate(NOISE)]
    result = conclude("a", "now", {"a": base, "b": rest}, "a", Compare(time=0.05), PROFILE)
    assert result.comparison is not None
    assert result.comparison.energy_ratio is not None
    assert result.comparison.energy_ratio.mean == pytest.approx(1.0)


def test_measured_against_modelled_is_said_and_judged_over_the_range() -> None:
    base = [facts("join", i, [replace(r, energy_kind="measured") for r in join(s)]) for i, s in enumerate(NOISE)]
    rest = [facts("early-exit", i, released(s)) for i, s in enumerate(reversed(NOISE))]
    result = conclude("a", "now", {"join": base, "early-exit": rest}, "join", Compare(time=0.05), PROFILE)
    assert result.comparison is not None
    assert result.comparison.energy_ratio_range is not None
    low, high = result.comparison.energy_ratio_range
    assert low < result.comparison.energy_ratio.mean < high  # type: ignore[union-attr]
    assert any("the joules of join are measured, those of early-exit modelled" in note for note in result.notes)
    # the shadow's cost is above the idle watts of a publication, and both are said
    assert result.findings[0].energy_kind == "modelled"
    assert any("idle device" in note and "profile h200" in note for note in result.notes)


def test_a_job_of_more_ranks_than_it_was_known_to_have_keeps_its_joules_per_unit() -> None:
    one = facts("join", 0, join(1.0))
    command = replace(one, manifest=msgspec.structs.replace(one.manifest, world_size=1))  # `command:` says nothing
    lacking = replace(one, manifest=msgspec.structs.replace(one.manifest, world_size=3))
    for run, known in ((command, True), (one, True), (lacking, False)):
        result = conclude("a", "now", {"join": [run]}, "join", Compare(), PROFILE)
        assert (result.variants["join"].energy_per_unit_j is not None) == known


def test_what_many_ranks_note_alike_is_one_line() -> None:
    noted = {
        rank: replace(
            summary(rank, {"working/compute": 1.0}, steps=1),
            notes=("no device", f"{90 + rank} of 1,200 kernels", *(["torn at byte 7"] if rank == 2 else [])),
        )
        for rank in range(128)
    }
    noted[130] = replace(summary(130, {"working/compute": 1.0}, steps=1), notes=("no device",))
    result = conclude("a", "now", {"join": [facts("join", 0, list(noted.values()))]}, "join", Compare(), PROFILE)
    assert [note for note in result.notes if "rank" in note and note.startswith("join")] == [
        "join: 129 ranks from 0 to 130: no device",
        "join: ranks 0–127, each of itself, such as rank 0: 90 of 1,200 kernels",
        "join: rank 2: torn at byte 7",
    ]
