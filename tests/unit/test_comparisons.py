"""Two records compared, whatever audits they come from: two ranks that compute, then wait in one all-reduce."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import magneton_dist
from magneton_dist import audits, pipeline
from magneton_dist.cluster.analysis import CollectRequest
from magneton_dist.commands import run as command
from magneton_dist.comparisons import APART, compare_records
from magneton_dist.config import Compare
from magneton_dist.errors import InputError, RecordError
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import Audit
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.store import load, write_manifest
from magneton_dist.reports.story import headline
from magneton_dist.tracer.rows import FIELDS

S = 1_000_000_000
METER = MeterUsed("modelled:h200", "modelled", "modelled: H200", "cpu")


def row(kind: str, /, **fields: object) -> str:
    return json.dumps([kind, *(fields.get(name) for name in FIELDS[kind])])


def spool(folder: Path, issue_s: int, length_s: int) -> Path:
    folder.mkdir(parents=True)
    end = 10 + length_s
    clock = [(0, 0), (10, 10), (10 + issue_s, 10 + issue_s), (end, 10 + issue_s)]
    lines = [row("stamp", t_ns=t * S, cpu_ns=c * S, delay_ns=0) for t, c in clock]
    lines += [
        row("step", step=0, start_ns=0, end_ns=10 * S, kind="warm-up"),
        row("step", step=1, start_ns=10 * S, end_ns=end * S, kind="measured"),
        row("collective", call_id=0, group="0", group_size=2, group_rank=0, seq=1, op="allreduce_", origin="ddp",
            bytes=400, dtype="float32", zero_payload=False, step=1, issue_ns=(10 + issue_s) * S,
            start_ns=(10 + issue_s) * S, end_ns=end * S, stack_id=0),
        row("mark", name="exit", t_ns=(end + 1) * S),
    ]  # fmt: skip
    (folder / "000000.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def made(tmp_path: Path, audit: str, variant: str, repeat: int, length_s: int, rules: Compare | None = None) -> Path:
    """A run in which both ranks compute for half of `length_s` and then are in the collective."""
    folder = tmp_path / audit / variant / str(repeat)
    for rank in (0, 1):
        segments = spool(tmp_path / f"{audit}-{variant}-{repeat}-{rank}", length_s // 2, length_s)
        pipeline.collect(CollectRequest(folder, rank, segments, None, None, "cpu"))
    ranks = [RankRun(rank, rank, "node", device="cpu", exit_code=0, meter=METER) for rank in (0, 1)]
    started = "2026-01-01T00:00:00Z"
    write_manifest(folder, Manifest(audit, variant, repeat, started, 2, ["train"], 0, ranks, {"node": Clock()}, {}))
    audits.Settings(
        name=audit, started=started, baseline=variant, compare=rules or Compare(), profile=load_profile("h200")
    ).write(folder.parent.parent)
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two audits of one variant each, of 20 and 30 s, four repeats."""
    for repeat in range(4):
        made(tmp_path, "monday", "base", repeat, 20, Compare(time=0.05))
        made(tmp_path, "friday", "new", repeat, 30)
    return tmp_path / "monday", tmp_path / "friday"


def test_two_audits_pair_their_repeats(two: tuple[Path, Path]) -> None:
    outcome = compare_records(*two)
    comparison = outcome.audit.comparison
    assert comparison is not None
    assert (comparison.baseline, comparison.candidate) == ("base", "new")
    assert comparison.time_ratio.mean == pytest.approx(1.5)
    assert comparison.energy_ratio is not None
    assert comparison.energy_ratio.mean == pytest.approx(1.5)
    assert comparison.verdict == "waste"
    assert outcome.audit.variants["new"].runs == 4
    assert APART in outcome.audit.notes
    assert any("no operators were recorded of base and new" in note for note in outcome.audit.notes)
    assert [bands.variant for bands in outcome.runs] == ["base", "new"]


def test_a_variant_or_one_run_of_an_audit(two: tuple[Path, Path]) -> None:
    of_variant = compare_records(two[0] / "base", two[1] / "new")
    assert of_variant.audit.variants["base"].runs == 4
    once = compare_records(two[0] / "base" / "2", two[1] / "new" / "0").audit
    assert once.comparison is not None
    assert once.comparison.verdict == "inconclusive"
    uneven = compare_records(two[0], two[1] / "new" / "0").audit
    assert uneven.variants["base"].runs == 1
    assert "base: only the first 1 of 4 repeats have a counterpart" in uneven.notes


def test_names_tell_the_sides_apart(two: tuple[Path, Path], tmp_path: Path) -> None:
    made(tmp_path, "later", "base", 0, 20)
    assert list(compare_records(two[0], tmp_path / "later").audit.variants) == ["monday/base", "later/base"]
    runs = two[0] / "base"
    assert list(compare_records(runs / "0", runs / "1").audit.variants) == ["base/0", "base/1"]
    itself = compare_records(runs / "0", runs / "0").audit
    assert list(itself.variants) == ["base/0 (a)", "base/0 (b)"]
    whole = compare_records(runs, runs / "0").audit
    assert list(whole.variants) == ["base", "base/0"]
    assert "base: only the first 1 of 4 repeats have a counterpart" in whole.notes
    assert APART not in itself.notes


def test_the_rules_are_those_of_the_baselines_audit(two: tuple[Path, Path]) -> None:
    comparison = compare_records(*two, by="time").audit.comparison
    assert comparison is not None
    assert comparison.by == "time"
    assert "base takes 33.3% less time than new" in comparison.reason


def test_other_watts_are_named(two: tuple[Path, Path]) -> None:
    assert compare_records(*two).audit.energy_source == "modelled: H200"
    other = compare_records(*two, profile=load_profile("a100")).audit
    assert "A100" in other.energy_source
    assert "H200" not in other.energy_source


def test_what_is_no_record_or_too_much_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    made(tmp_path, "monday", "other", 0, 20)
    with pytest.raises(RecordError, match="audit of several variants: base, other"):
        compare_records(*two)
    with pytest.raises(RecordError, match="holds no record"):
        compare_records(tmp_path / "nowhere", two[1])


def test_what_a_side_lacks_is_said_of_that_side(two: tuple[Path, Path], capsys) -> None:  # type: ignore[no-untyped-def]
    runs = two[0] / "base" / "0", two[1] / "new" / "0"
    shutil.rmtree(runs[1] / "ranks" / "00001")
    assert "new: rank 1: no record" in compare_records(*runs).audit.missing
    assert "new repeat 0: rank 1: no record" in compare_records(*two).audit.missing
    shutil.rmtree(runs[1] / "ranks" / "00000")
    capsys.readouterr()
    assert command(["compare", *map(str, runs)]) == 3
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["new", "unknown", "unknown", "unknown", "not", "checked"] in rows
    nothing = compare_records(*runs).audit
    assert (nothing.comparison, headline(nothing).verdict) == (None, "not compared")
    assert headline(nothing).sentence.startswith("Nothing that was recorded of new can be counted")


def test_from_python(two: tuple[Path, Path]) -> None:
    by_folder, by_record = magneton_dist.compare(*two), magneton_dist.compare(*map(load, two))
    assert isinstance(by_folder, Audit)
    assert by_folder == by_record
    for ignored in ({"eps": 1e-2}, {"rank": 1}, {"algorithm": "dominators"}):
        with pytest.raises(InputError, match="does not apply to audited runs"):
            magneton_dist.compare(*two, **ignored)  # type: ignore[arg-type]
    again = magneton_dist.audit(two[0])
    assert isinstance(again, Audit)
    assert magneton_dist.audit(load(two[0])) == again
    assert again.variants["base"].energy_j == by_folder.variants["base"].energy_j


def test_the_command(two: tuple[Path, Path], tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "page.html"
    assert command(["compare", str(two[0]), str(two[1]), "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "new against base: waste" in text
    assert page.read_text().startswith("<!doctype html>")
    assert command(["compare", str(two[0]), str(two[1]), "--json", "--by", "time"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["by"] == "time"
    assert command(["compare", str(two[0]), str(two[1]), "--html", str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (two[0] / "audit.json").exists()
