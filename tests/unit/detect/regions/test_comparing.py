"""Two variants region by region, with every joule added up by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from magneton_dist.config import Compare
from magneton_dist.detect.regions.comparing import RegionComparison, compare_regions

from .drawing import Drawing, Variant, loader, one

QUIET = (1.0, 1.001, 0.999, 1.0)  # repeats of a quiet machine
CALL = "train.py:9 step"
EAGER = ("model.py:20 eager", CALL)
FUSED = ("model.py:30 fused", CALL)


def compared(a: Variant, b: Variant, rules: Compare | None = None, a_factors=QUIET, b_factors=QUIET[::-1],
             known: bool = True) -> RegionComparison:  # fmt: skip
    return compare_regions(
        a.runs(a_factors, known), b.runs(b_factors, known), loader(a, b), rules or Compare(time=0.05)
    )


def eager(j: float = 3.0, name: str = "eager") -> Variant:
    """In one place: two products with an elementwise operator between them."""
    d = Drawing()
    d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
    d.op("bmm", "x", "scores", j, stack=EAGER).op("exp", "scores", "p", j, stack=EAGER)
    d.op("bmm", "p x", "y", j, stack=EAGER)
    d.op("mm", "y weight", "out", 5.0, stack=(CALL,))
    return one(name, d)


def fused(j: float = 3.0, name: str = "fused") -> Variant:
    """The same in one operator."""
    d = Drawing()
    d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
    d.op("flash_attention", "x", "y", j, stack=FUSED)
    d.op("mm", "y weight", "out", 5.0, stack=(CALL,))
    return one(name, d)


def test_the_region_that_differs_is_told_with_its_joules_and_line() -> None:
    result = compared(eager(), fused())
    (finding,) = result.findings
    assert finding.kind == "region"
    assert finding.title == "attention: eager burns 3.0x the joules of fused"
    assert finding.variant == "eager"
    # 9 J against 3 J on each of two ranks, in each of 10 steps
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx((9 - 3) * 2 * 10, rel=1e-3)
    assert finding.joules.ci95 is not None
    assert finding.share == pytest.approx(6 / 19, rel=1e-3)
    assert finding.seconds == pytest.approx(1.2, rel=1e-3)
    assert finding.where.stack == ["model.py:20 eager", "train.py:9 step"]
    assert finding.where.what == "forward, from train.py:9 step"
    assert finding.fix == "Do at model.py:20 what fused does: flash_attention instead of bmm, exp."
    assert finding.evidence["eager_per_step_j"] == pytest.approx(18, rel=1e-3)
    assert finding.evidence["fused_per_step_j"] == pytest.approx(6, rel=1e-3)
    assert finding.energy_kind == "modelled"
    assert finding.confidence == 1.0
    assert result.covered == 1.0
    assert not result.agree


def test_both_sides_of_a_region_stand_side_by_side() -> None:
    region = compared(eager(), fused()).results[0]
    assert (region.kind, region.differs, region.places, region.line) == ("matched", True, 1, CALL)
    mine, theirs = region.sides["eager"], region.sides["fused"]
    assert mine.joules is not None
    assert mine.joules.mean == pytest.approx(18, rel=1e-3)
    assert mine.seconds == pytest.approx(0.18, rel=1e-3)
    assert [op.name for op in mine.shown] == ["aten.bmm.default", "aten.exp.default", "aten.bmm.default"]
    assert [op.joules for op in mine.shown] == pytest.approx([3.0, 3.0, 3.0])
    assert mine.shown[2].inputs == ["float32[64]", "float32[64]"]
    assert mine.stacks == [list(EAGER)]
    assert mine.operators == 3 * 2
    # bmm reads x and writes scores, exp two, bmm three: 7 tensors of 256 bytes, on two ranks
    assert mine.bytes == 7 * 256 * 2
    assert (theirs.operators, theirs.bytes) == (2, 2 * 256 * 2)
    assert theirs.kernels is None
    assert region.energy_ratio is not None
    assert region.energy_ratio.mean == pytest.approx(1 / 3, rel=1e-3)
    assert region.difference_j is not None
    assert region.difference_j.mean == pytest.approx(-12, rel=1e-3)
    assert region.rank_median_j == pytest.approx(-6, rel=1e-3)
    assert region.rank_mad_j == pytest.approx(0, abs=1e-6)
    assert region.values_error == 0.0


def test_regions_that_cost_the_same_are_no_finding() -> None:
    result = compared(eager(1.0), fused(3.0))
    assert result.findings == []
    assert result.agree
    assert {r.differs for r in result.results} == {False}


def test_a_region_below_ten_per_cent_is_no_finding_and_one_above_is() -> None:
    assert compared(fused(3.0, "a"), fused(2.8, "b")).findings == []
    assert len(compared(fused(3.0, "a"), fused(2.6, "b")).findings) == 1
    assert compared(fused(3.0, "a"), fused(2.6, "b"), Compare(region=0.2, time=0.05)).findings == []


def test_a_difference_must_hold_over_the_range_of_watts() -> None:
    # bmm and exp against attention: 30 % apart at nominal watts; attention may draw from 327 to 691 W
    result = compared(eager(1.3), fused(3.0))
    assert result.findings == []
    assert result.results[0].judgement.startswith("depends on the watts of the operators: ratio 0.")
    # in seconds alone there is nothing to depend on
    assert len(compared(eager(1.3), fused(3.0), Compare(by="time")).findings) == 1


def test_replayed_joules_depend_on_no_watts_and_say_so() -> None:
    (finding,) = compared(replace(eager(1.3), replayed=True), replace(fused(3.0), replayed=True)).findings
    assert finding.energy_kind == "replayed"
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx((1.3 * 3 - 3.0) * 2 * 10, rel=1e-3)
    one_side = compared(replace(eager(3.0), replayed=True), fused(3.0))
    assert {finding.energy_kind for finding in one_side.findings} == {"modelled"}
    assert one_side.results[0].energy_kind == "modelled"


def test_identical_regions_of_layers_are_one_finding() -> None:
    def layers(parts: int, name: str) -> Variant:
        d = Drawing()
        d.op("embedding", "weight", "h0", 5.0, stack=(CALL,))
        for layer in range(12):
            made = f"h{layer}"
            for part in range(parts - 1):
                d.op("mul", made, f"{name}{layer}.{part}", 1.0, stack=(f"{name}.py:3 f", CALL))
                made = f"{name}{layer}.{part}"
            d.op("add", made, f"h{layer + 1}", 1.0, stack=(f"{name}.py:3 f", CALL))
        return one(name, d)

    result = compared(layers(2, "slow"), layers(1, "fast"))
    (finding,) = result.findings
    assert finding.title == "add: slow burns 2.0x the joules of fast in 12 places"
    assert finding.evidence["places"] == 12
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(12 * 1.0 * 2 * 10, rel=1e-3)
    assert [r.places for r in result.results if r.differs] == [12]


def test_forward_and_backward_of_a_line_are_one_finding() -> None:
    def both(parts: int, name: str) -> Variant:
        d = Drawing()
        d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
        for phase, read, write in (("forward", "x", "y"), ("backward", "dy", "dx")):
            made = read
            for part in range(parts - 1):
                d.op("mul", made, f"{name}.{phase}.{part}", 1.0, phase=phase, stack=(f"{name}.py:3 f", CALL))
                made = f"{name}.{phase}.{part}"
            d.op("gelu" if phase == "forward" else "gelu_backward", made, write, 1.0, phase=phase,
                 stack=(f"{name}.py:3 f", CALL))  # fmt: skip
        return one(name, d)

    (finding,) = compared(both(2, "slow"), both(1, "fast")).findings
    assert finding.title == "gelu: slow burns 2.0x the joules of fast"
    assert finding.where.what.startswith("forward and backward")
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(2 * 1.0 * 2 * 10, rel=1e-3)


def test_work_that_only_moves_between_phases_is_no_finding() -> None:
    def moved(forward: int, name: str) -> Variant:
        d = Drawing()
        d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
        d.op("embedding", "weight", "dy", 5.0, phase="backward", stack=(CALL,))
        for phase, read, write, parts in (("forward", "x", "y", forward), ("backward", "dy", "dx", 6 - forward)):
            made = read
            for part in range(parts - 1):
                d.op("mul", made, f"{name}.{phase}.{part}", 2.0, phase=phase, stack=("m.py:3 f", CALL))
                made = f"{name}.{phase}.{part}"
            d.op("add", made, write, 2.0, phase=phase, stack=("m.py:3 f", CALL))
        return one(name, d)

    result = compared(moved(4, "early"), moved(2, "late"))
    assert result.findings == []
    judgements = {r.judgement for r in result.results if r.line == "m.py:3 f"}
    assert judgements == {"only moved between backward and forward: their sum does not differ"}


def test_operators_on_one_side_only_are_told() -> None:
    d = Drawing()
    d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
    d.op("mm", "x weight", "out", 5.0, stack=(CALL,))
    lean = one("lean", d)
    d = Drawing()
    d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
    d.op("cumsum", "x", "unused", 4.0, stack=("debug.py:5 check", CALL))
    d.op("mm", "x weight", "out", 5.0, stack=(CALL,))
    extra = one("extra", d)
    result = compared(lean, extra)
    (finding,) = result.findings
    assert finding.title == "cumsum: only extra runs it"
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(4 * 2 * 10, rel=1e-3)
    assert finding.fix == "Leave out cumsum at debug.py:5: lean does the same work without."
    region = result.results[0]
    assert region.kind == "one-sided"
    assert region.sides["lean"].operators == 0
    assert region.energy_ratio is None


def test_when_little_matches_nothing_is_said_of_one_side() -> None:
    def other(name: str) -> Variant:
        d = Drawing()
        for i in range(6):
            d.op("mul", f"{name}{i}", f"{name}{i + 1}", 1.0)
        return one(name, d)

    result = compared(other("p"), other("q"))
    assert result.findings == []
    assert result.covered == 0.0
    assert any("only 0%" in note for note in result.notes)


def test_noise_between_repeats_is_no_finding() -> None:
    noisy = np.random.default_rng(1).lognormal(0.0, 0.5, 8)
    result = compared(fused(3.0, "a"), fused(3.6, "b"), a_factors=noisy[:4], b_factors=noisy[4:])
    assert result.findings == []
    assert "noise between repeats" in result.results[0].judgement


def test_one_run_each_shows_other_operators_but_not_the_same_ones() -> None:
    result = compared(eager(), fused(), a_factors=[1.0], b_factors=[1.0])
    (finding,) = result.findings
    assert finding.confidence == 0.5
    assert finding.joules is not None
    assert finding.joules.ci95 is None
    assert any("set repeats to 2" in note for note in result.notes)
    result = compared(fused(9.0, "a"), fused(3.0, "b"), a_factors=[1.0], b_factors=[1.0])
    assert result.findings == []
    assert "same operators in one run each" in result.results[0].judgement


def test_one_run_each_is_no_finding_where_equal_operators_differ_as_much() -> None:
    def with_controls(variant: Variant, factor: float) -> Variant:
        d = variant.drawings["one"][0]
        for i in range(6):
            d.op(f"custom{i}", f"in{i} weight", f"out{i}", 4.0 * (factor if i % 2 else 1 / factor), stack=(CALL,))
        return variant

    quiet = compared(with_controls(eager(), 1.0), with_controls(fused(), 1.1), a_factors=[1.0], b_factors=[1.0])
    assert len(quiet.findings) == 1
    loud = compared(with_controls(eager(), 1.0), with_controls(fused(), 2.0), a_factors=[1.0], b_factors=[1.0])
    assert loud.findings == []


def test_the_same_operators_told_apart_by_repeats_point_to_the_settings() -> None:
    (finding,) = compared(fused(9.0, "a"), fused(3.0, "b")).findings
    assert "compare the settings" in finding.fix


@pytest.mark.parametrize(("contention", "found"), [(None, 1), (0.05, 1), (0.3, 0)])
def test_ranks_that_waited_for_a_core_say_nothing_of_the_same_operators(contention: float | None, found: int) -> None:
    a, b = fused(9.0, "a"), fused(3.0, "b")
    other = eager(9.0, "a"), b

    def disturbed(variant: Variant, factors):  # type: ignore[no-untyped-def]
        runs = variant.runs(factors)
        repeats = [{r: replace(s, contention=contention) for r, s in run.items()} for run in runs.repeats]
        return replace(runs, repeats=repeats)

    def findings(one: Variant, two: Variant) -> int:
        sides = disturbed(one, QUIET), disturbed(two, QUIET[::-1])
        return len(compare_regions(*sides, loader(one, two), Compare(time=0.05)).findings)

    assert findings(a, b) == found
    assert findings(*other) == 1  # other operators are another matter


def test_a_cheaper_side_that_takes_longer_is_a_trade_off() -> None:
    slow = fused(3.0)
    slow.drawings["one"][0].seconds[1] = 0.2  # eager: 0.09 s
    (finding,) = compared(eager(), slow).findings
    assert finding.kind == "trade-off"
    assert "fused takes 122.2% longer there" in str(finding.evidence["price"])


def test_a_cheaper_side_with_other_values_is_a_trade_off() -> None:
    near = fused()
    near.drawings["one"][0].scale["y"] = 1 + 5e-4  # within the matcher's tolerance
    result = compared(eager(), near)
    assert [f.kind for f in result.findings] == ["region"]
    assert result.results[0].values_error == pytest.approx(5e-4, rel=1e-2)
    (finding,) = compared(eager(), near, Compare(time=0.05, values=1e-4)).findings
    assert finding.kind == "trade-off"
    assert "values differ by up to 0.0005" in str(finding.evidence["price"])


def test_a_cheaper_side_that_holds_more_memory_is_a_trade_off() -> None:
    def recomputed(again: bool) -> Variant:
        """`again`: what the backward pass needs is not kept but computed again."""
        d = Drawing()
        d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
        d.op("exp", "x", "big", 4.0, stack=("m.py:3 f", CALL)).op("sum", "big", "y", 1.0, stack=("m.py:4 f", CALL))
        d.op("mm", "x weight", "peak", 5.0, stack=(CALL,))
        if again:
            d.op("exp", "x", "anew", 4.0, phase="backward", stack=("m.py:3 f", CALL))
        d.op("mul", "anew" if again else "big", "dx", 1.0, phase="backward", stack=("m.py:4 f", CALL))
        d.shapes |= {"peak": (1024,), "big": (256,), "anew": (256,)}
        return one("again" if again else "kept", d)

    result = compared(recomputed(False), recomputed(True))
    (finding,) = result.findings
    assert finding.kind == "trade-off"
    assert finding.variant == "again"
    # at mm: weight, x and peak (256 + 256 + 4,096 bytes), and in `kept` also big (1,024 bytes); two ranks
    assert result.peaks == (2 * 5632, 2 * 4608)
    assert finding.evidence["price"] == "kept holds 22% more at the step's peak"


def test_by_time_decides_by_seconds() -> None:
    slow = fused(9.0)
    slow.drawings["one"][0].seconds[1] = 0.3
    assert compared(eager(), slow).findings == []
    (finding,) = compared(eager(), slow, Compare(by="time", time=0.05)).findings
    assert finding.title == "attention: fused takes 3.3x the time of eager"
    assert finding.seconds == pytest.approx((0.3 - 0.09) * 2 * 10, rel=1e-3)


def test_by_memory_decides_by_what_is_alive_at_the_peak() -> None:
    a, b = eager(), fused()
    for d in (a.drawings["one"][0], b.drawings["one"][0]):
        d.shapes |= {"scores": (512,), "p": (512,)}
    (finding,) = compared(a, b, Compare(by="memory")).findings
    # at exp, x, scores and p are alive: 256 + 2,048 + 2,048 bytes and the weight; at flash_attention only y
    assert finding.title.startswith("attention: ")
    assert finding.evidence["eager_per_step_bytes"] == 2 * 4096
    assert finding.variant == "eager"


def test_by_values_tells_where_they_part() -> None:
    near = eager(name="near")
    near.drawings["one"][0].scale["y"] = 1 + 5e-4
    (finding,) = compared(eager(), near, Compare(by="values", values=1e-4)).findings
    assert finding.kind == "trade-off"
    assert compared(eager(), near, Compare(by="values")).findings == []


def test_unknown_joules_are_compared_by_time_and_said() -> None:
    result = compared(eager(), fused(), known=False)
    (finding,) = result.findings
    assert finding.title == "attention: eager takes 3.0x the time of fused"
    assert finding.joules is None
    assert finding.energy_kind == "unmeasured"
    assert any("joules of operators are unknown" in note for note in result.notes)


def test_without_times_bytes_are_compared_and_said() -> None:
    a, b = eager(), fused()
    for variant in (a, b):
        d = variant.drawings["one"][0]
        d.seconds = [0.0] * len(d.ops)
    result = compared(a, b, known=False)
    (finding,) = result.findings
    assert finding.title == "attention: eager moves 3.5x the bytes of fused"
    assert any("no times" in note for note in result.notes)


def test_classes_of_ranks_are_matched_apart_and_summed_together() -> None:
    def stages(maker, name: str) -> Variant:  # type: ignore[no-untyped-def]
        first, second = maker(3.0).drawings["one"][0], maker(1.0).drawings["one"][0]
        second.op("loss", "out", "l", 2.0, stack=(CALL,))
        return Variant(name, {"first": [first], "second": [second]}, {0: "first", 1: "first", 2: "second"})

    result = compared(stages(eager, "eager"), stages(fused, "fused"))
    (finding,) = result.findings
    assert finding.ranks == [0, 1, 2]
    # (9 - 3) J on ranks 0 and 1, (3 - 1) J on rank 2
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx((6 + 6 + 2) * 10, rel=1e-3)
    region = next(r for r in result.results if r.differs)
    assert region.rank_median_j == pytest.approx(-6, rel=1e-3)
    assert region.outlier_ranks == [2]


def test_only_regions_that_hold_in_every_traced_step_count() -> None:
    """In step 0 two values inside the region happen to be equal on both sides; in step 1 they are not."""

    def chain(name: str, middle: list[str]) -> Variant:
        drawings = []
        for step, value in enumerate(middle):
            d = Drawing(step=step)
            d.op("embedding", f"w{step}", f"x{step}", 5.0, stack=(CALL,))
            d.op("mul", f"x{step}", value, 2.0 if name == "a" else 1.0, stack=(CALL,))
            d.op("add", value, f"y{step}", 1.0 if name == "a" else 2.0, stack=(CALL,))
            drawings.append(d)
        return Variant(name, {"one": drawings})

    # both steps agree: mul 2 against 1 J, add 1 against 2 J, apart
    apart = compared(chain("a", ["m0", "m1"]), chain("b", ["m0", "m1"]))
    assert sorted(len(r.sides["a"].shown) for r in apart.results) == [1, 1, 1]
    joined = compared(chain("a", ["m0", "m1"]), chain("b", ["m0", "other"]))
    assert sorted(len(r.sides["a"].shown) for r in joined.results) == [1, 2]
    assert joined.findings == []


def test_where_runs_part_is_said_with_the_probable_reason() -> None:
    def dropped(name: str) -> Variant:
        d = Drawing()
        d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
        d.op("native_dropout", "x", f"{name}d mask{name}", 1.0, stack=(CALL,))
        for i in range(4):
            d.op("mm", f"{name}d" if not i else f"{name}{i}", f"{name}{i + 1}", 3.0, stack=(CALL,))
        return one(name, d)

    result = compared(dropped("p"), dropped("q"))
    assert result.findings == []
    (note,) = [note for note in result.notes if "random numbers" in note]
    assert note.startswith("q against p: the runs part at native_dropout")


def test_equal_parameters_after_steps_on_other_data_are_no_equal_work() -> None:
    def step(name: str, data: str, times: int, extra: bool) -> Variant:
        d = Drawing(roles={data: "input", "w": "parameter", "k": "input"})
        d.op("embedding", "k", "e", 5.0, stack=(CALL,))
        d.op("mm", f"{data} w", f"h{data}", 5.0, stack=(CALL,))
        for i in range(times):
            d.op("mul", f"h{data}" if not i else f"h{data}{i}", f"h{data}{i + 1}", 5.0, stack=(CALL,))
        # of w and a gradient that is another one, what w was but for its last digits
        d.op("sub", f"w h{data}{times}", "w'", 1.0, phase="optimizer", stack=("train.py:12 update",))
        d.op("neg", "e", "said", 1.0, stack=(CALL,))
        if extra:
            d.op("cumsum", f"h{data}", f"unused{data}", 9.0, stack=("debug.py:5 check", CALL))
        return one(name, d)

    result = compared(step("small", "x", 1, False), step("large", "y", 4, True))
    assert result.findings == []
    whole, check = result.results[:2]
    assert (whole.kind, check.kind) == ("matched", "one-sided")
    for region in (whole, check):
        assert region.judgement.endswith("the runs were given other parameters, data or random numbers")
    assert any("which reads other data" in note for note in result.notes)
    # on the same data both are findings
    assert len(compared(step("small", "x", 1, False), step("large", "x", 4, True)).findings) == 2


def test_the_same_operators_more_often_are_not_told_to_replace_themselves() -> None:
    def repeated(name: str, times: int) -> Variant:
        d = Drawing()
        d.op("embedding", "weight", "x", 5.0, stack=(CALL,))
        for i in range(times - 1):
            d.op("exp", f"{name}{i}" if i else "x", f"{name}{i + 1}", 3.0, stack=EAGER)
        d.op("exp", f"{name}{times - 1}" if times > 1 else "x", "y", 3.0, stack=EAGER)
        return one(name, d)

    (finding,) = compared(repeated("once", 1), repeated("thrice", 3)).findings
    assert finding.fix == (
        "Both run exp at model.py:20, not as often or in another order (3 operators in thrice against 1 in once): "
        "do as once does."
    )


def test_a_match_that_does_not_hold_on_other_ranks_is_said() -> None:
    def ranks(maker, name: str, other: str) -> Variant:  # type: ignore[no-untyped-def]
        first, second = maker().drawings["one"][0], Drawing()
        for op, j in zip(first.ops, first.joules, strict=True):
            known = {i: c for c, i in first._values.items()}
            read, made = (" ".join(f"{known[i]}{other}" for i in op[key]) for key in ("inputs", "outputs"))
            second.op(op["name"].split(".")[1], read, made, j, stack=(CALL,))
        return Variant(name, {"first": [first], "second": [second]}, {0: "first", 1: "second"}, alike=True)

    agreeing = compared(ranks(eager, "eager", "'"), ranks(fused, "fused", "'"))
    assert not any("other ranks" in note for note in agreeing.notes)
    parted = compared(ranks(eager, "eager", "'"), ranks(fused, "fused", '"'))
    assert any("only 0% of the values that match on rank 0 match on other ranks" in note for note in parted.notes)


def test_values_without_fingerprints_are_not_compared_and_it_is_said(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    table = Drawing.table
    bare = lambda d, name: table(d, name).clear() if name == "fingerprints" else table(d, name)  # noqa: E731
    monkeypatch.setattr(Drawing, "table", bare)
    result = compared(eager(), fused())
    assert (result.results, result.findings) == ([], [])
    assert result.notes == [
        "regions were not compared: values of eager and fused have no fingerprints (capture.fingerprints)"
    ]


def test_a_region_of_some_steps_only_is_no_finding() -> None:
    def logging(name: str, extra: bool) -> Variant:
        drawings = []
        for step in (0, 1):
            d = Drawing(step=step)
            d.op("embedding", f"w{step}", f"x{step}", 5.0, stack=(CALL,))
            if extra and step == 1:
                d.op("cumsum", f"x{step}", f"log{step}", 4.0, stack=(CALL,))
            drawings.append(d)
        return Variant(name, {"one": drawings})

    result = compared(logging("quiet", False), logging("loud", True))
    assert result.findings == []
    assert [r.judgement for r in result.results if r.kind == "one-sided"] == ["not in every traced step"]


def test_launch_times_on_a_gpu_are_said_to_be_no_more(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    row = Drawing._row
    monkeypatch.setattr(Drawing, "_row", lambda d, *value: row(d, *value) | {"device": "cuda:0"})
    assert any("the times of their launches" in note for note in compared(eager(), fused()).notes)


def test_ranks_without_a_counterpart_are_named() -> None:
    a, b = eager(), fused()
    a.ranks = {0: "one", 2: "one"}  # of 3, as many as the other has
    b.ranks = {0: "one", 1: "one", 2: "one"}
    result = compared(a, b)
    assert any("1 rank of fused without a counterpart" in note for note in result.notes)
    assert result.findings[0].ranks == [0, 2]


def test_without_traced_steps_nothing_is_compared_and_said() -> None:
    a, b = eager(), fused()
    a.drawings["one"] = []
    a_runs, b_runs = b.runs(QUIET), b.runs(QUIET)
    for run in a_runs.repeats:
        for rank in run:
            run[rank] = type(run[rank])(**{**vars(run[rank]), "traced": ()})
    result = compare_regions(a_runs, b_runs, loader(a, b), Compare())
    assert (result.results, result.findings, result.covered) == ([], [], None)
    assert "no operators were recorded" in result.notes[0]
