from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magneton_dist.config import Compare
from magneton_dist.energy.summary import RankSummary, corner_joules
from magneton_dist.energy.verdict import Runs, compare
from magneton_dist.meters import Watts, load_profile
from magneton_dist.records.audit import Comparison

QUIET = np.array([1.0, 1.004, 0.997, 1.001])  # runs of one variant within half a percent
QUIET_TOO = np.array([1.002, 0.998, 1.003, 0.999])


def judge(
    energy: float = 1.0,
    time: float = 1.0,
    agree: bool | None = True,
    rules: Compare | None = None,
    **candidate: Any,
) -> Comparison:
    """A quiet baseline of 1000 J and 10 s against a candidate at these ratios."""
    a = Runs(name="a", energy_j=1000 * QUIET, time_s=10 * QUIET, work=candidate.pop("baseline_work", None))
    b = Runs(name="b", energy_j=1000 * energy * QUIET_TOO, time_s=10 * time * QUIET_TOO, **candidate)
    return compare(a, b, rules or Compare(time=0.02), values_agree=agree, values_error=0.25)


def test_cheaper_not_slower_and_equal_is_waste_of_the_other():
    told = judge(energy=0.8)
    assert (told.verdict, told.hungrier) == ("waste", "a")
    assert told.energy_ratio.mean == pytest.approx(0.8, rel=1e-3)
    assert told.saved_j.mean == pytest.approx(200, rel=0.01)
    assert told.saved_share == pytest.approx(0.2, rel=0.01)
    assert "b needs 20.0% less energy than a and is no slower" in told.reason


def test_the_candidate_can_be_the_wasteful_one():
    told = judge(energy=1.25)
    assert (told.verdict, told.hungrier) == ("waste", "b")
    assert "a needs 20.0% less energy than b" in told.reason
    assert told.saved_j.mean == pytest.approx(-250, rel=0.01)


def test_cheaper_but_slower_is_a_trade_off():
    told = judge(energy=0.8, time=1.1)
    assert (told.verdict, told.hungrier) == ("trade-off", "a")
    assert "is 10.0% slower" in told.reason
    assert judge(energy=1.25, time=0.9).verdict == "trade-off"


def test_cheaper_with_other_values_is_a_trade_off():
    told = judge(energy=0.8, agree=False)
    assert told.verdict == "trade-off"
    assert "other values (off by 0.25)" in told.reason


def test_values_that_were_not_checked_are_said():
    told = judge(energy=0.8, agree=None)
    assert told.verdict == "waste"
    assert "was not checked" in told.reason


def test_time_that_is_not_known_well_enough_makes_it_inconclusive():
    told = judge(energy=0.8, rules=Compare(time=0.001))
    assert (told.verdict, told.hungrier) == ("inconclusive", "a")
    assert "at most 0.1% slower" in told.reason


def test_faster_is_no_objection():
    assert judge(energy=0.8, time=0.9, rules=Compare(time=0.001)).verdict == "waste"


def test_a_difference_within_the_noise_is_none_within_the_far_end():
    told = judge(energy=1.001)
    assert (told.verdict, told.hungrier) == ("no difference", None)
    far = max(abs(end - 1) for end in told.energy_ratio.ci95)
    assert told.reason == f"no difference within {far:.1%}"


def test_a_number_as_total_is_the_margin_and_the_equivalence_bound():
    five = Compare(total=0.05, time=0.02)
    assert judge(energy=0.97, rules=five).verdict == "no difference"
    assert judge(energy=0.90, rules=five).verdict == "waste"
    assert judge(energy=0.945, rules=five).verdict == "inconclusive"  # its interval lies across the bound
    assert judge(energy=0.97, rules=Compare(total="auto", time=0.02)).verdict == "waste"


def test_noise_too_large_for_any_statement_is_inconclusive():
    wild = np.array([0.6, 1.5, 0.8, 1.3])
    a = Runs(name="a", energy_j=1000 * wild, time_s=10 * QUIET)
    b = Runs(name="b", energy_j=900 * wild[::-1], time_s=10 * QUIET)
    told = compare(a, b, Compare(), values_agree=True)
    assert told.verdict == "inconclusive"
    assert "noise between runs" in told.reason


def test_one_run_each_is_inconclusive_and_says_why():
    one = Runs(name="a", energy_j=np.array([100.0]), time_s=np.array([1.0]))
    told = compare(one, one, Compare(), values_agree=True)
    assert (told.verdict, told.energy_ratio.ci95, told.noise) == ("inconclusive", None, None)
    assert "repeats" in told.reason


def test_unmeasured_energy_is_inconclusive_and_has_no_ratio():
    a = Runs(name="a", energy_j=None, time_s=10 * QUIET)
    told = compare(a, Runs(name="b", energy_j=1000 * QUIET, time_s=5 * QUIET), Compare(), values_agree=True)
    assert (told.verdict, told.energy_ratio, told.saved_j) == ("inconclusive", None, None)
    assert told.time_ratio.mean == pytest.approx(0.5)
    assert "unmeasured" in told.reason


class TestWork:
    """A candidate that did other work than the baseline; 4,800 tokens are the baseline's."""

    def judge(self, energy: float, tokens: float) -> Comparison:
        work = np.full(4, 4800.0)
        return judge(energy, energy, work=np.full(4, tokens), unit="token", baseline_work=work)

    def test_the_same_work_changes_nothing(self):
        assert self.judge(0.8, 4800).verdict == "waste"

    def test_less_work_for_less_energy_is_a_trade_off(self):
        told = self.judge(0.4, 2400)  # 20 % less per token
        assert told.verdict == "trade-off"
        assert told.energy_ratio.mean == pytest.approx(0.8, rel=1e-3)
        assert told.reason.startswith("b did 50.0% less work; per token: b needs 20.0% less")
        # of the baseline's work, for which the candidate would need 800 J
        assert told.saved_j.mean == pytest.approx(200, rel=0.01)
        assert told.saved_share == pytest.approx(0.2, rel=0.01)

    def test_less_work_that_saves_nothing_per_token_is_a_trade_off(self):
        told = self.judge(0.5, 2400)
        assert told.verdict == "trade-off"
        assert "no difference within" in told.reason

    def test_less_work_that_costs_more_per_token_but_less_in_total_is_a_trade_off(self):
        told = self.judge(0.6, 2400)  # 1.2 per token
        assert (told.verdict, told.hungrier) == ("trade-off", "b")

    def test_less_work_for_more_energy_is_waste(self):
        told = self.judge(1.2, 2400)
        assert (told.verdict, told.hungrier) == ("waste", "b")
        assert told.saved_j.mean == pytest.approx(-1400, rel=0.01)  # it would need 2,400 J

    def test_more_work_for_less_energy_is_waste_of_the_other(self):
        told = self.judge(0.8, 5200)
        assert (told.verdict, told.hungrier) == ("waste", "a")

    def test_a_baseline_that_did_less_is_seen_too(self):
        told = self.judge(1.5, 9600)  # the candidate: twice the work for 1.5 times the energy
        assert (told.verdict, told.hungrier) == ("trade-off", "a")
        assert told.reason.startswith("a did 50.0% less work")


class TestWatts:
    """Join against early exit in batches of one second each: 48 on one rank, 10 on the other."""

    TIMES = np.array([[1.0, 1.003, 0.998, 1.001], [1.001, 0.999, 1.002, 1.0]])

    def judge(
        self, join: dict[str, float], early: dict[str, float], **watts: tuple[float, float, float]
    ) -> Comparison:
        profile = load_profile("h200")
        changed = {
            key: Watts(low=low, nominal=nominal, high=high, source="by hand")
            for key, (low, nominal, high) in watts.items()
        }
        profile = profile.model_copy(update={"watts": profile.watts | changed})
        runs = []
        for name, seconds, times in (("join", join, self.TIMES[0]), ("early-exit", early, self.TIMES[1])):
            repeats = [self.rank({key: s * time for key, s in seconds.items()}) for time in times]
            runs.append(
                Runs(
                    name=name,
                    time_s=48 * times,
                    energy_j=np.array([corner_joules([one], [profile.nominal()])[0] for one in repeats]),
                    corners_j=np.array([corner_joules([one], profile.corners()) for one in repeats]),
                )
            )
        return compare(*runs, Compare(), values_agree=True)

    def rank(self, watt_seconds: dict[str, float]) -> RankSummary:
        return RankSummary(
            rank=0, node="n", device="cpu", window_s=0, states={}, watt_seconds=watt_seconds, energy_j=None,
            energy_kind="modelled", energy_source="by hand",
        )  # fmt: skip

    def test_waiting_against_released_holds_over_the_whole_range(self):
        told = self.judge({"compute": 58, "wait": 38}, {"compute": 58, "bare_idle": 38})
        # (58*138 + 38*74) / (58*138 + 38*124) = 10816 / 12716
        assert told.energy_ratio.mean == pytest.approx(10816 / 12716, rel=1e-3)
        # least: (58*124 + 38*67) / (58*124 + 38*136); most: (58*152 + 38*81) / (58*152 + 38*112)
        assert told.energy_ratio_range == pytest.approx((9738 / 12360, 11894 / 13072), rel=1e-3)
        assert (told.verdict, told.hungrier) == ("waste", "join")

    def test_waste_vanishes_when_waiting_draws_what_a_released_device_does(self):
        idle = (67, 74, 81)
        told = self.judge({"compute": 58, "wait": 38}, {"compute": 58, "bare_idle": 38}, wait=idle)
        assert told.energy_ratio.mean == pytest.approx(1.0, rel=2e-3)
        assert told.verdict == "inconclusive"  # the two may still differ within the range
        assert "depends on the profile's watts" in told.reason
        exact = (74, 74, 74)
        told = self.judge(
            {"compute": 58, "wait": 38}, {"compute": 58, "bare_idle": 38}, wait=exact, bare_idle=exact
        )
        assert told.verdict == "no difference"

    def test_parking_may_or_may_not_save(self):
        told = self.judge({"compute": 58, "wait": 38}, {"compute": 58, "context_idle": 38})
        assert told.verdict == "inconclusive"
        low, high = told.energy_ratio_range
        assert low < 0.9 < 1 < high


class TestRates:
    """Many seeded audits of known truth: 4 repeats, 4 % noise between runs, independent."""

    def waste_rate(self, effect: float, audits: int, repeats: int = 4, noise: float = 0.04) -> float:
        rng = np.random.default_rng(2)
        rules = Compare(time=1.0)  # only energy can decide
        wasted = 0
        for _ in range(audits):
            a, b = np.exp(rng.normal(0, noise, (2, repeats)))
            told = compare(
                Runs(name="a", energy_j=100 * a, time_s=a),
                Runs(name="b", energy_j=100 * effect * b, time_s=b),
                rules,
                values_agree=True,
            )
            wasted += told.verdict == "waste"
        return wasted / audits

    def test_the_same_variant_twice_is_hardly_ever_waste(self):
        assert self.waste_rate(1.0, 2000) <= 0.01

    def test_even_two_repeats_do_not_cry_waste(self):
        assert self.waste_rate(1.0, 500, repeats=2) <= 0.02

    def test_a_fifth_is_found(self):
        assert self.waste_rate(0.8, 300) >= 0.9


TIME, MEMORY, VALUES = (Compare(time=0.02, by=by) for by in ("time", "memory", "values"))


def test_by_time_the_slower_variant_wastes():
    told = judge(energy=0.99, time=1.3, rules=TIME)
    assert (told.by, told.verdict, told.hungrier) == ("time", "waste", "b")
    assert "a takes 23.1% less time than b" in told.reason
    assert "slower" not in told.reason
    assert judge(energy=0.8, time=1.0, rules=TIME).verdict == "no difference"


def test_by_time_more_energy_is_a_price():
    told = judge(energy=1.25, time=0.7, rules=TIME)
    assert (told.verdict, told.hungrier) == ("trade-off", "a")
    assert "but needs 25.0% more energy" in told.reason


def judge_memory(peak: float, time: float = 1.0, repeats: int = 4) -> Comparison:
    a = Runs(name="a", time_s=10 * QUIET[:repeats], energy_j=None, memory_bytes=np.full(repeats, 1e9))
    b = Runs(name="b", time_s=10 * time * QUIET_TOO[:repeats], energy_j=None, memory_bytes=np.full(repeats, peak * 1e9))
    return compare(a, b, MEMORY, values_agree=True)


def test_by_memory_one_run_tells():
    told = judge_memory(0.6, repeats=4)
    assert (told.verdict, told.hungrier) == ("waste", "a")
    assert "b holds 40.0% less memory at a step's peak than a and is no slower" in told.reason
    assert told.memory_ratio.mean == pytest.approx(0.6)
    assert judge_memory(1.0).verdict == "no difference"
    assert judge_memory(0.995).verdict == "no difference"
    assert judge_memory(0.6, time=1.1).verdict == "trade-off"
    # from one run each it is not known how long they take
    assert judge_memory(0.6, repeats=1).verdict == "inconclusive"


def test_by_memory_without_a_traced_step():
    told = compare(Runs(name="a", time_s=QUIET, energy_j=None), Runs(name="b", time_s=QUIET, energy_j=None), MEMORY,
                   values_agree=True)  # fmt: skip
    assert (told.verdict, told.reason) == ("inconclusive", "no step was traced in at least one run")


def test_by_values():
    assert judge(energy=0.5, rules=VALUES).verdict == "no difference"
    told = judge(rules=VALUES, agree=False)
    assert (told.verdict, told.reason) == ("trade-off", "the values differ by 0.25, more than 1.0%")
    assert judge(rules=VALUES, agree=None).verdict == "inconclusive"
