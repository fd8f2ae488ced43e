"""Classes of ranks, matched here or elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from magneton_dist.detect.regions import classes
from magneton_dist.detect.regions.classes import match_classes, samples_of
from magneton_dist.detect.regions.records import PairedSteps, RecordedSteps
from magneton_dist.detect.regions.representatives import Assignment, Found
from magneton_dist.records.store import write_rank

from .drawing import Drawing, Variant

NAMES = ("a", "b")


def stages(name: str, parts: int) -> Variant:
    """Two classes of two ranks each."""
    drawings = {}
    for stage in ("first", "second"):
        d = Drawing()
        d.op("embedding", "weight", f"{stage}0", 5.0)
        for layer in range(4):
            made = f"{stage}{layer}"
            for part in range(parts - 1):
                d.op("mul", made, f"{name}{stage}{layer}.{part}")
                made = f"{name}{stage}{layer}.{part}"
            d.op("add", made, f"{stage}{layer + 1}")
        drawings[stage] = [d]
    return Variant(name, drawings, {0: "first", 1: "first", 2: "second", 3: "second"})


@pytest.fixture
def both(tmp_path: Path) -> tuple[Variant, Variant, RecordedSteps]:
    """Two variants, on disk as well."""
    variants = stages("a", 2), stages("b", 1)
    folders: dict[str, dict[int, Path]] = {}
    for variant in variants:
        folders[variant.name] = {3: tmp_path / variant.name / "3", 7: tmp_path / variant.name / "7"}
        for folder in folders[variant.name].values():
            for rank, of_class in variant.ranks.items():
                (drawing,) = variant.drawings[of_class]
                names = ("ops", "values", "fingerprints", "stacks")
                write_rank(folder, rank, {name: drawing.table(name) for name in names})
    return *variants, RecordedSteps(folders)


class Elsewhere:
    """As if in another process: nothing but bytes goes there and comes back."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, function: Callable[[Assignment], Found], items: Sequence[Assignment]) -> list[Found]:
        sent = [pickle.dumps((function, item)) for item in items]
        self.sizes += map(len, sent)
        done = [(call, item) for call, item in map(pickle.loads, sent)]
        found: list[Found] = pickle.loads(pickle.dumps([call(item) for call, item in done]))
        return found


def test_classes_matched_elsewhere_are_matched_alike_and_little_is_sent(both, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    a, b, on_disk = both
    monkeypatch.setattr(classes, "WORTH_SHARING", 0)
    samples = samples_of(a.runs(), b.runs())
    load = PairedSteps(on_disk, [3, 7])
    here, left_out = match_classes(samples, NAMES, load)
    elsewhere = Elsewhere()
    there, _ = match_classes(samples, NAMES, load, elsewhere)
    assert left_out == 0
    assert len(here) == len(there) == len(elsewhere.sizes) == 2
    assert max(elsewhere.sizes) < 5_000
    for one, other in zip(here, there, strict=True):
        assert one.samples == other.samples
        assert np.array_equal(one.region_a, other.region_a)
        assert np.array_equal(one.region_b, other.region_b)
        assert np.array_equal(one.found.confidence, other.found.confidence)
        assert one.found.agreement == other.found.agreement == 1.0
        assert one.a.step.ops.equals(other.a.step.ops)
        assert one.b.step.ops.equals(other.b.step.ops)
        assert one.match.regions.matched == 4 + 1  # layers and the embedding


def test_little_is_matched_here(both) -> None:  # type: ignore[no-untyped-def]
    a, b, on_disk = both
    elsewhere = Elsewhere()
    match_classes(samples_of(a.runs(), b.runs()), NAMES, PairedSteps(on_disk, [3, 7]), elsewhere)
    assert elsewhere.sizes == []


def test_one_class_is_matched_here(both, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    a, b, on_disk = both
    monkeypatch.setattr(classes, "WORTH_SHARING", 0)
    a.ranks = b.ranks = {0: "first", 1: "first"}
    elsewhere = Elsewhere()
    (only,), _ = match_classes(samples_of(a.runs(), b.runs()), NAMES, PairedSteps(on_disk, [3, 7]), elsewhere)
    assert elsewhere.sizes == []
    assert len(only.samples) == 2 * 2
