"""`explain` on records that cannot be explained, and what it is told wrongly."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import msgspec
import pytest

from magneton_dist import explanations
from magneton_dist.audits import Outcome
from magneton_dist.commands import run
from magneton_dist.config import Job, seconds_of
from magneton_dist.diagnosis import explain
from magneton_dist.diagnosis.explain import worth_telling
from magneton_dist.diagnosis.kept import keep, remembered, told
from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.diagnosis.operators import Diagnosis
from magneton_dist.diagnosis.recorded import Sides
from magneton_dist.errors import MagnetonError
from magneton_dist.records.audit import (
    Audit,
    Cause,
    Finding,
    Interval,
    Machine,
    OperatorsAt,
    Place,
    RegionResult,
    VariantResult,
)

WHERE = Place(operators={"a": OperatorsAt(0, 0, 2, [3, 4]), "b": OperatorsAt(0, 0, 2, [5])})
FINDING = Finding("region", "mm", "a", Interval(2.0), "modelled", 0.1, 1.0, [0], WHERE, {}, "compare")
AUDIT = Audit("x", "", Machine([], [], "", 1, {}), "modelled", "", {}, None, [FINDING], [])
CAUSE = Cause("setting", "torch.x", {"a": "1", "b": "2"}, seconds={"a": 2.0, "b": 1.0})


def test_times_are_read_as_people_write_them():
    assert [seconds_of(text) for text in ("90", "90s", "2m", "1.5h", "0")] == [90.0, 90.0, 120.0, 5400.0, 0.0]
    assert [seconds_of(text) for text in ("", "x", "-1", "2 days", "inf")] == [None] * 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere: holds no record"),
        ((".", "1", "--budget", "soon"), "--budget: is no time: soon (say 90s or 2m)"),
        ((".", "1", "--budget", "0"), "--budget: is no time: 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["explain", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("2", "has no finding 2"), ("0", "has no finding 0"), ("knob", "its findings are: 1 region"),
        ("region:1", "it compares no regions"),
    ],
)
def test_a_finding_that_is_not_there_is_named(which, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(explanations.audits, "audit", lambda folder: Outcome(AUDIT, folder, []))
    monkeypatch.setattr(explanations, "_runs", lambda folder: {})
    assert run(["explain", str(tmp_path), which]) == 2
    assert message in capsys.readouterr().err


def test_a_kept_diagnosis_comes_back_with_the_same_finding_only(tmp_path: Path):
    diagnosis = Diagnosis("proved", CAUSE, "In a: `x`", ["proved: x"])
    knob = told(msgspec.structs.replace(FINDING, kind="knob"), diagnosis)
    known = told(FINDING, diagnosis)
    keep(msgspec.structs.replace(AUDIT, findings=[known, knob]), tmp_path)
    assert remembered(AUDIT, tmp_path).findings == [known, knob]
    other = msgspec.structs.replace(FINDING, variant="b")
    assert remembered(msgspec.structs.replace(AUDIT, findings=[other]), tmp_path).findings == [other, knob]
    assert remembered(AUDIT, tmp_path / "elsewhere") == AUDIT


def test_kept_diagnoses_that_are_cut_short_are_set_aside_and_said(tmp_path: Path):
    known = told(FINDING, Diagnosis("proved", CAUSE, "In a: `x`", ["proved: x"]))
    audit = msgspec.structs.replace(AUDIT, findings=[known])
    keep(audit, tmp_path)
    whole = (tmp_path / "diagnoses.json").read_bytes()
    (tmp_path / "diagnoses.json").write_bytes(whole[:-20])
    found = remembered(AUDIT, tmp_path)
    assert found.findings == AUDIT.findings
    (note,) = found.notes
    assert "set aside as diagnoses.json.damaged" in note
    assert (tmp_path / "diagnoses.json.damaged").read_bytes() == whole[:-20]
    assert remembered(AUDIT, tmp_path) == AUDIT
    assert keep(audit, tmp_path) == audit
    assert (tmp_path / "diagnoses.json").read_bytes() == whole


def test_what_another_one_kept_meanwhile_stays(tmp_path: Path):
    other = msgspec.structs.replace(FINDING, variant="b")
    audit = msgspec.structs.replace(AUDIT, findings=[FINDING, other])
    one, two = (told(finding, Diagnosis("proved", CAUSE, "In a: `x`", ["proved: x"])) for finding in (FINDING, other))
    keep(msgspec.structs.replace(audit, findings=[one, other]), tmp_path)
    assert keep(msgspec.structs.replace(audit, findings=[FINDING, two]), tmp_path).findings == [one, two]
    assert remembered(audit, tmp_path).findings == [one, two]


def test_where_nothing_can_be_kept_the_cause_is_told_all_the_same(tmp_path: Path):
    audit = msgspec.structs.replace(AUDIT, findings=[told(FINDING, Diagnosis("proved", CAUSE, "In a: `x`", ["x"]))])
    (tmp_path / "a-file").touch()
    found = keep(audit, tmp_path / "a-file")
    assert found.findings == audit.findings
    assert found.notes == [f"causes were found, but cannot be kept in {tmp_path / 'a-file'}: Not a directory"]


@pytest.mark.parametrize(
    ("before", "after", "proof", "last"),
    [
        ("none", "proved", "proved", "new"),
        ("proved", "proved", "proved", "new"),
        ("proved", "none", "proved", "looked for again, and not proved this time: new"),
        ("consistent", "none", "none", "new"),
    ],
)  # fmt: skip
def test_what_was_proved_stays_when_it_is_looked_for_again(before, after, proof, last, monkeypatch):
    known = told(FINDING, Diagnosis(before, CAUSE, "In a: `x`", ["old"]))
    monkeypatch.setattr(explain, "_investigated", lambda *_: Diagnosis(after, None, "", ["new"]))
    found = explain.explained(known, Sides({}), Laboratory(1.0))
    assert (found.proof, found.diagnosis[-1]) == (proof, last)
    assert explain.explained(found, Sides({}), Laboratory(1.0)) == found


@pytest.mark.parametrize(
    ("seconds", "title"),
    [
        ({}, "mm: nothing was proved to make its calls differ"),
        ({"a": 1.0}, "mm: what makes its calls differ is proved"),
        ({"a": 1.0, "b": 1.05}, "mm: made again in fresh processes, its calls' times are less than 1.1x apart"),
        ({"a": 1.0, "b": 2.0}, "mm: b takes 2.0x the time of a for one call, made again in fresh processes"),
    ],
)
def test_a_region_is_said_to_take_what_was_measured_of_it(seconds, title, monkeypatch):
    region = RegionResult("mm", "a", "b", "matched", "", ["forward"], 1, "", {}, "modelled", operators=WHERE.operators)
    cause = msgspec.structs.replace(CAUSE, seconds=seconds) if seconds else None
    monkeypatch.setattr(explain, "_investigated", lambda *_: Diagnosis("proved" if seconds else "none", cause, "", []))
    variants = {name: VariantResult(1, None, None, Interval(1.0), None, []) for name in "ab"}
    audit = msgspec.structs.replace(AUDIT, variants=variants)
    assert explain.explained_region(region, audit, Sides({}), Laboratory(1.0)).title == title


def test_many_at_once_lose_nothing(tmp_path: Path):
    """Each keeps a finding of its own, in a process of its own, as two `explain` would."""
    alike = [msgspec.structs.replace(FINDING, ranks=[rank]) for rank in range(24)]
    context = multiprocessing.get_context("fork")
    keeping = [context.Process(target=_keep_one, args=(finding, tmp_path)) for finding in alike]
    for process in keeping:
        process.start()
    for process in keeping:
        process.join()
    assert [process.exitcode for process in keeping] == [0] * 24
    found = remembered(msgspec.structs.replace(AUDIT, findings=alike), tmp_path).findings
    assert [finding.proof for finding in found] == ["proved"] * 24


def _keep_one(finding: Finding, folder: Path) -> None:
    known = told(finding, Diagnosis("proved", CAUSE, "", ["proved: x"]))
    keep(msgspec.structs.replace(AUDIT, findings=[known]), folder)


def test_only_a_proved_cause_that_costs_time_makes_a_finding():
    proved = told(FINDING, Diagnosis("proved", CAUSE, "", []))
    assert worth_telling(proved)
    assert not worth_telling(msgspec.structs.replace(proved, proof="consistent"))
    same = msgspec.structs.replace(CAUSE, seconds={"a": 1.05, "b": 1.0})
    assert not worth_telling(msgspec.structs.replace(proved, cause=same))
    assert not worth_telling(FINDING)


@pytest.mark.parametrize(("error", "interrupted"), [(KeyboardInterrupt(), "SIGINT"), (MagnetonError("no torch"), "")])
def test_an_audit_stands_when_the_search_for_causes_ends_early(error, interrupted, tmp_path, monkeypatch):
    second = msgspec.structs.replace(FINDING, variant="b")
    audit = msgspec.structs.replace(AUDIT, findings=[FINDING, second])
    done = told(FINDING, Diagnosis("proved", CAUSE, "In a: `x`", ["proved: x"]))

    def explained(finding, *_):
        if finding is second:
            raise error
        return done

    monkeypatch.setattr(explanations, "explained", explained)
    monkeypatch.setattr(explanations, "_runs", lambda folder: {})
    outcome = explanations.explain_costliest(Outcome(audit, tmp_path, []), 60.0)
    assert outcome.audit.findings == [done, second]
    assert outcome.interrupted == interrupted
    assert any("no torch" in note for note in outcome.audit.notes) == (not interrupted)


@pytest.mark.parametrize("runs", [1, 0])  # of the other variant
def test_the_costliest_shadow_is_looked_at_where_another_variant_has_none(runs, tmp_path, monkeypatch):
    shadow = msgspec.structs.replace(FINDING, kind="shadow-collective", where=Place(stack=["train.py:9 main"]))
    second = msgspec.structs.replace(shadow, ranks=[1])
    variants = {name: VariantResult(n, None, None, Interval(1.0), None, []) for name, n in (("a", 1), ("b", runs))}
    audit = msgspec.structs.replace(AUDIT, findings=[shadow, second], variants=variants)
    seen = Cause("branch", "args.sync", {"a": "'join'", "b": "'exit'"}, agreed=["stacks", "lines"])
    looked_at = told(shadow, Diagnosis("consistent", seen, "start it with --sync exit", ["lines: x"]))
    monkeypatch.setattr(explanations, "explained_shadow", lambda *_: looked_at)
    monkeypatch.setattr(explanations, "_runs", lambda folder: {})
    jobs = {name: Job(script="train.py") for name in ("a", "b")}
    found = explanations.explain_costliest(Outcome(audit, tmp_path, []), 60.0, jobs=jobs).audit.findings
    assert found == ([looked_at, second] if runs else [shadow, second])
    assert remembered(audit, tmp_path).findings == found
    # without the configuration nothing is run
    assert explanations.explain_costliest(Outcome(audit, tmp_path, []), 60.0).audit.findings == [shadow, second]


def test_without_a_budget_nothing_is_looked_for(tmp_path):
    outcome = Outcome(AUDIT, tmp_path, [])
    assert explanations.explain_costliest(outcome, 0.0) is outcome
    assert list(tmp_path.iterdir()) == []
