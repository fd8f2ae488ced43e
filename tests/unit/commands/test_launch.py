"""`launch` without a cluster: the plan, and the exit code of an audit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from magneton_dist.commands import run
from magneton_dist.commands.launch import exit_code
from magneton_dist.records.audit import (
    Audit,
    Comparison,
    Finding,
    Interval,
    Machine,
    Place,
    VariantResult,
)


def comparison(verdict: str, saved: float | None) -> Comparison:
    return Comparison("a", "b", Interval(0.8), Interval(1.0), 0.01, verdict, "", saved_share=saved)  # type: ignore[arg-type]


def finding(share: float | None) -> Finding:
    return Finding("shadow-collective", "t", "a", None, "modelled", share, 1.0, [0], Place(), {}, "")


AUDIT = Audit(
    name="x", started="2026-01-01T00:00:00Z", machine=Machine([], [], "", 2, {}), energy_kind="modelled",
    energy_source="", comparison=None, findings=[], missing=[],
    variants={"a": VariantResult(1, None, None, Interval(1.0), None, [], exit_codes=[0, 0])},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fail_on_waste", "code"),
    [
        ({}, None, 0),
        ({}, 0.0, 0),
        ({"missing": ["rank 1"]}, None, 3),
        ({"missing": ["rank 1"], "findings": [finding(0.9)]}, 10.0, 3),
        ({"variants": {"a": msgspec.structs.replace(AUDIT.variants["a"], exit_codes=[0, 1])}}, None, 3),
        ({"variants": {"a": msgspec.structs.replace(AUDIT.variants["a"], runs=0)}, "missing": ["all"]}, None, 1),
        # alone: the findings
        ({"findings": [finding(0.05), finding(0.2)]}, 20.0, 4),
        ({"findings": [finding(0.05), finding(0.2)]}, 20.1, 0),
        ({"findings": [finding(0.2)]}, None, 0),
        ({"findings": [finding(None)]}, 0.0, 0),
        # two variants: the comparisons called waste, whatever findings there are
        ({"comparison": comparison("waste", 0.15), "findings": [finding(0.5)]}, 15.0, 4),
        ({"comparison": comparison("waste", 0.15), "findings": [finding(0.5)]}, 16.0, 0),
        ({"comparison": comparison("trade-off", 0.9)}, 1.0, 0),
        ({"comparison": comparison("waste", None)}, 0.0, 0),
        ({"comparison": comparison("no difference", 0.0),
          "other_comparisons": [comparison("waste", 0.3)]}, 25.0, 4),
    ],
)  # fmt: skip
def test_exit_code(changes, fail_on_waste, code):
    assert exit_code(msgspec.structs.replace(AUDIT, **changes), fail_on_waste) == code


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("a.yaml").write_text("job: {script: train.py}\n")
    assert run(["launch", "a.yaml", "--set", "repeats=2", "--set", "name=mine", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("audit      mine: 1 variant(s), 2 repeat(s) each\n")
    assert err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "train.py"]
