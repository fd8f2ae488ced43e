"""Whatever the graphs: joules are conserved, B against A mirrors A against B, A against A has nothing to tell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.config import Compare
from magneton_dist.detect.regions.classes import match_classes, samples_of
from magneton_dist.detect.regions.comparing import RegionComparison, compare_regions
from magneton_dist.detect.regions.places import group_regions
from magneton_dist.detect.regions.statistics import classes_of
from magneton_dist.detect.regions.sums import sum_sides
from magneton_dist.matching.ranks import corresponding

from .drawing import PROFILE, Drawing, Variant, loader

FACTORS = (1.0, 1.02, 0.99)
NAMES = ("mul", "bmm", "view", "_softmax", "flash_attention")


@st.composite
def variants(draw: st.DrawFn) -> tuple[Variant, Variant]:
    """Two rewrites of one random graph: operators split, merged, copied or left out."""
    n = draw(st.integers(2, 12))
    reads = [draw(st.integers(0, i)) for i in range(n)]
    phases = [draw(st.sampled_from(["forward", "backward"])) for _ in range(n)]
    steps = draw(st.integers(1, 2))
    return tuple(  # type: ignore[return-value]
        Variant(name, {"one": [_rewritten(draw, name, step, reads, phases) for step in range(steps)]})
        for name in ("a", "b")
    )


def _rewritten(draw: st.DrawFn, name: str, step: int, reads: list[int], phases: list[str]) -> Drawing:
    d = Drawing(step=step)
    for i, (read, phase) in enumerate(zip(reads, phases, strict=True)):
        source, made = f"v{read}", f"v{i + 1}"
        cost = draw(st.floats(0.125, 8.0, width=32))
        for part in range(draw(st.integers(0, 2))):
            d.op(draw(st.sampled_from(NAMES)), source, f"{name}{step}.{i}.{part}", cost, phase=phase)
            source = f"{name}{step}.{i}.{part}"
        if draw(st.booleans()) or i == 0:
            d.op(draw(st.sampled_from(NAMES)), source, made, cost, phase=phase, stack=(f"m.py:{i} f", "t.py:1 g"))
        else:
            d.op("mul", source, f"{name}{step}.{i}.else", cost, phase=phase)
    return d


def compared(a: Variant, b: Variant) -> RegionComparison:
    return compare_regions(a.runs(FACTORS), b.runs(FACTORS[::-1]), loader(a, b), Compare())


@settings(max_examples=15, deadline=None)
@given(variants())
def test_joules_and_operators_are_conserved_on_every_rank(both: tuple[Variant, Variant]) -> None:
    a, b = both
    runs = (a.runs(FACTORS), b.runs(FACTORS))
    pairs, left_out = match_classes(samples_of(*runs), ("a", "b"), loader(a, b))
    assert left_out == 0
    places = group_regions(pairs)
    sums = sum_sides(pairs, places, len(FACTORS), corresponding(2, 2), classes_of(PROFILE))
    for variant, side in zip(both, sums, strict=True):
        drawings = variant.drawings["one"]
        joules = np.mean([sum(d.joules) for d in drawings])
        assert side.joules is not None
        assert side.joules.sum(axis=1) == pytest.approx([2 * joules * f for f in FACTORS], rel=1e-5)
        assert side.by_rank.sum(axis=1) == pytest.approx([joules * np.mean(FACTORS)] * 2, rel=1e-5)
        assert side.operators.sum() == pytest.approx(2 * np.mean([len(d.ops) for d in drawings]))
        peaks = [p.a.memory if variant is a else p.b.memory for p in pairs]
        assert all(m.given_bytes + m.made_bytes.sum() == m.peak_bytes for m in peaks)


@settings(max_examples=15, deadline=None)
@given(variants())
def test_the_mirror_image(both: tuple[Variant, Variant]) -> None:
    forth, back = compared(*both), compared(*reversed(both))
    assert len(forth.findings) == len(back.findings)
    assert forth.covered == pytest.approx(back.covered)
    for one, other in zip(forth.findings, back.findings, strict=True):
        assert (one.title, one.variant, one.fix, one.kind) == (other.title, other.variant, other.fix, other.kind)
        assert one.joules is not None
        assert other.joules is not None
        assert one.joules.mean == pytest.approx(other.joules.mean)
    known = {_key(r): r for r in forth.results}
    assert len(back.results) == len(forth.results)
    for r in back.results:
        mirrored = known[_key(r)]
        assert (r.baseline, r.candidate) == (mirrored.candidate, mirrored.baseline)
        assert r.difference_j is not None
        assert mirrored.difference_j is not None
        assert r.difference_j.mean == pytest.approx(-mirrored.difference_j.mean, abs=1e-9)
        if r.energy_ratio is not None:
            assert mirrored.energy_ratio is not None
            assert math.log(r.energy_ratio.mean) == pytest.approx(-math.log(mirrored.energy_ratio.mean), abs=1e-9)


def _key(region):  # type: ignore[no-untyped-def]
    sides = (region.sides[name] for name in sorted(region.sides))
    return (region.kind, *((tuple((o.name, o.phase) for o in s.shown), round(s.joules.mean, 6)) for s in sides))


@settings(max_examples=15, deadline=None)
@given(variants())
def test_against_itself_there_is_nothing_to_tell(both: tuple[Variant, Variant]) -> None:
    a = both[0]
    twin = replace(a, name="twin")
    result = compare_regions(a.runs(FACTORS), twin.runs(FACTORS), loader(a, twin), Compare())
    assert result.findings == []
    assert result.covered == 1.0
    for region in result.results:
        assert region.energy_ratio is not None
        assert region.energy_ratio.mean == 1.0
        assert region.difference_j is not None
        assert region.difference_j.mean == 0.0
