from __future__ import annotations

import pytest

from magneton_dist.detect import schedule
from magneton_dist.detect.regions.comparing import RegionComparison
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.records.audit import Finding, Interval, Place

from .conftest import PROFILE, WATTS, summary

AGREE = RegionComparison(agree=True)


def runs(name: str, wait_s: float, noise: tuple[float, ...] = (1.0, 1.01, 0.99)) -> VariantRuns:
    """Two ranks that compute for 4 s in 10 steps; rank 0 waits for `wait_s`."""
    repeats = []
    for factor in noise:
        waiting = summary(0, {"working/compute": 4.0, "working/wait": wait_s * factor})
        repeats.append({0: waiting, 1: summary(1, {"working/compute": 4.0})})
    return VariantRuns(name, repeats, PROFILE)


def test_the_same_operators_with_more_waiting() -> None:
    (finding,) = schedule.pair(runs("late", 2.0), runs("early", 0.5), AGREE, [])
    assert finding.kind == "schedule"
    assert finding.variant == "late"
    assert finding.title.startswith("the same operators, but late spends 1.50 s more waiting in collectives")
    assert finding.seconds == pytest.approx(1.5)
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(1.5 * WATTS["wait"])
    assert finding.share == pytest.approx(1.5 * WATTS["wait"] / (8 * WATTS["compute"] + 2 * WATTS["wait"]), rel=1e-3)
    assert finding.evidence == {"late_per_step_s": pytest.approx(0.2), "early_per_step_s": pytest.approx(0.05)}
    (mirrored,) = schedule.pair(runs("early", 0.5), runs("late", 2.0), AGREE, [])
    assert (mirrored.title, mirrored.variant) == (finding.title, finding.variant)


def test_silence_where_it_says_nothing() -> None:
    late, early = runs("late", 2.0), runs("early", 0.5)
    assert schedule.pair(late, early, RegionComparison(agree=False), []) == []
    assert schedule.pair(late, runs("also", 2.0), AGREE, []) == []
    assert schedule.pair(late, runs("little", 1.95), AGREE, []) == []
    noisy = runs("noisy", 0.5, (0.1, 8.0, 1.0))
    assert schedule.pair(late, noisy, AGREE, []) == []
    once = VariantRuns("late", late.repeats[:1], PROFILE), VariantRuns("early", early.repeats[:1], PROFILE)
    assert schedule.pair(*once, AGREE, []) == []


def test_a_wait_with_a_known_culprit_is_told_once() -> None:
    known = Finding("straggler-wait", "", "late", Interval(1.0), "modelled", 0.1, 1.0, [1], Place(), {}, "")
    assert schedule.pair(runs("late", 2.0), runs("early", 0.5), AGREE, [known]) == []
    other = Finding("straggler-wait", "", "early", Interval(1.0), "modelled", 0.1, 1.0, [1], Place(), {}, "")
    assert len(schedule.pair(runs("late", 2.0), runs("early", 0.5), AGREE, [other])) == 1
