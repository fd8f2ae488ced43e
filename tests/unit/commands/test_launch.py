"""`launch` without a cluster: the plan, and the exit code of an audit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from magneton_dist import audits
from magneton_dist.audits import Outcome
from magneton_dist.cluster import guard
from magneton_dist.cluster.progress import Progress
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
    """Of a at 100 J with b; `saved` is the share of a's joules that b saves, negative when b burns more."""
    return Comparison(
        "a", "b", Interval(0.8), Interval(1.0), 0.01, verdict, "", saved_share=saved,  # type: ignore[arg-type]
        saved_j=None if saved is None else Interval(100 * saved), hungrier="b" if (saved or 0) < 0 else "a",
    )  # fmt: skip


def finding(share: float | None) -> Finding:
    return Finding("shadow-collective", "t", "a", None, "modelled", share, 1.0, [0], Place(), {}, "")


AUDIT = Audit(
    name="x", started="2026-01-01T00:00:00Z", machine=Machine([], [], "", 2, {}), energy_kind="modelled",
    energy_source="", comparison=None, findings=[], missing=[],
    variants={
        "a": VariantResult(1, Interval(100.0), None, Interval(1.0), None, [], exit_codes=[0, 0]),
        "b": VariantResult(1, Interval(125.0), None, Interval(1.0), None, [], exit_codes=[0, 0]),
    },
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
        ({"findings": [msgspec.structs.replace(finding(0.5), kind="trade-off")]}, 20.0, 0),
        # two variants: the comparisons called waste, whatever findings there are
        ({"comparison": comparison("waste", 0.15), "findings": [finding(0.5)]}, 15.0, 4),
        ({"comparison": comparison("waste", 0.15), "findings": [finding(0.5)]}, 16.0, 0),
        ({"comparison": comparison("trade-off", 0.9)}, 1.0, 0),
        # the candidate is the hungrier one: 25 J of its 125
        ({"comparison": comparison("waste", -0.25)}, 20.0, 4),
        ({"comparison": comparison("waste", -0.25)}, 20.1, 0),
        # by time, the slower one may burn less: no joules were wasted
        ({"comparison": msgspec.structs.replace(comparison("waste", -0.25), hungrier="a")}, 0.0, 0),
        ({"comparison": comparison("waste", None)}, 0.0, 0),
        ({"comparison": comparison("no difference", 0.0),
          "other_comparisons": [comparison("waste", 0.3)]}, 25.0, 4),
    ],
)  # fmt: skip
def test_exit_code(changes, fail_on_waste, code):
    assert exit_code(msgspec.structs.replace(AUDIT, **changes), fail_on_waste) == code


@pytest.fixture
def launched(tmp_path: Path, monkeypatch):
    """`launch a.yaml` where the audit itself comes to a given outcome."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guard, "enter", lambda arguments: None)
    Path("train.py").touch()
    Path("a.yaml").write_text("job: {script: train.py}\n")
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)

    def launch(*words: str, audit: Audit = AUDIT, **outcome: object) -> tuple[int, list[object]]:
        called: list[object] = []

        def ended(config, *, address, on_progress):
            called.extend([config.name, address])
            on_progress(Progress("Running", "a", 0, 1, 1, 3, 5, 1, 1, 9.0, note="rank 1 is gone"))
            return Outcome(audit, folder, [], **outcome)

        monkeypatch.setattr(audits, "launch", ended)
        return run(["launch", "a.yaml", *words]), called

    return launch


def test_it_writes_and_prints_the_report(launched, capsys, tmp_path):
    assert launched("--set", "name=mine", "--address", "auto") == (0, ["mine", "auto"])
    out, err = capsys.readouterr()
    assert out.startswith("x  AUDITED ALONE\n")
    assert out.endswith("Wrote runs/x/audit.json\nWrote runs/x/report.html\n")
    assert "rank 1 is gone" in err
    assert msgspec.json.decode((tmp_path / "runs/x/audit.json").read_bytes(), type=Audit) == AUDIT
    assert (tmp_path / "runs/x/report.html").read_text().startswith("<!doctype html>")


def test_json_is_all_of_stdout(launched, capsys):
    assert launched("--json")[0] == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Audit) == AUDIT


def test_quiet_says_only_what_was_written(launched, capsys):
    assert launched("--quiet")[0] == 0
    assert capsys.readouterr() == ("Wrote runs/x/audit.json\nWrote runs/x/report.html\n", "")


def test_waste_is_4_and_an_interruption_goes_before_it(launched):
    wasteful = msgspec.structs.replace(AUDIT, findings=[finding(0.2)])
    assert launched("--quiet", "--fail-on-waste", "5", audit=wasteful)[0] == 4
    assert launched("--quiet", "--fail-on-waste", "5", audit=wasteful, interrupted="SIGINT")[0] == 130
    assert launched("--quiet", "--fail-on-waste", "5", audit=wasteful, interrupted="SIGTERM")[0] == 143


def test_what_a_failed_job_printed_stays_visible(launched, capsys):
    launched("--quiet", output={"a": "ValueError: mine\n\n"})
    assert capsys.readouterr().err == "--- a failed; the end of its output:\nValueError: mine\n---\n"


def test_a_record_that_cannot_be_written_is_one_line(launched, capsys, tmp_path):
    (tmp_path / "runs/x").rmdir()
    assert launched("--quiet")[0] == 2
    do = "give a file in a folder that is there and may be written to"
    error = f"{tmp_path}/runs/x/audit.json: cannot be written: No such file or directory ({do})"
    assert capsys.readouterr().err == f"magneton-dist: error: {error}\n"


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("a.yaml").write_text("job: {script: train.py}\n")
    assert run(["launch", "a.yaml", "--set", "repeats=2", "--set", "name=mine", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("audit      mine: 1 variant(s), 2 repeat(s) each\n")
    assert err == ""
    assert run(["launch", "a.yaml", "--dry-run", "--json"]) == 2
    assert "--dry-run prints a plan" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "train.py"]
