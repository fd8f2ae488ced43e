import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import numpy as np
import polars as pl
import pytest

from magneton_dist.records.audit import Cause, Counterfactual
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.html import write_html
from magneton_dist.timeline.states import STATES

AUDITS = ["audit", "alone", "troubled", "hostile"]


class Page(HTMLParser):
    """Elements, their attributes and the visible text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("td", "th", "li", "dt", "dd", "div", "p", "br"):
            self.text += " "
        if tag in ("script", "style"):
            self.inside.append(tag)
            self.scripts.append("")

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def words(self):
        return " ".join(self.text.split())

    @property
    def island(self):
        return json.loads(self.scripts[-2])

    def tags(self, name):
        return [attrs for tag, attrs in self.elements if tag == name]


@pytest.fixture
def page(tmp_path):
    def build(audit, runs=()):
        write_html(audit, list(runs), tmp_path / "report.html")
        return Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    return build


@pytest.mark.parametrize("name", AUDITS)
def test_is_one_file_that_reaches_for_nothing(name, request, page, runs):
    built = page(request.getfixturevalue(name), runs)
    assert not built.tags("link") + built.tags("img") + built.tags("iframe")
    for _, attrs in built.elements:
        assert not {"src", "href", "action"} & set(attrs)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", built.source)
    policy = next(m["content"] for m in built.tags("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("name", AUDITS)
def test_nothing_of_the_job_becomes_markup(name, request, page, runs):
    hostile_runs = [replace(run, variant="</script><script>alert(1)</script>") for run in runs]
    settings = {"<b>x</b>": {"join": "<script>"}}
    built = page(msgspec.structs.replace(request.getfixturevalue(name), settings=settings), hostile_runs)
    assert len(built.tags("script")) == 2
    assert not built.tags("b") or "<b>x</b>" in built.words
    assert not any(key.startswith("on") for _, attrs in built.elements for key in attrs)
    assert "alert(1)" not in built.scripts[-1]
    assert "\x1b" not in built.source
    assert "\u202e" not in built.source


def test_text_of_the_job_is_shown_as_it_is_but_cut(hostile, page):
    built = page(hostile)
    assert "</script><script>alert(1)</script>" in built.words
    assert "{{ 7*7 }}" in built.words
    assert "x" * 700 not in built.source


def test_head_says_the_verdict_the_rank_the_cost_and_the_fix(audit, page, runs):
    words = page(audit, runs).words
    head = words[: words.index("Who burnt what, when")]
    for fact in (
        "join wastes 15 % (modelled) of its energy: early-exit does the same work without it.", "rank 0 of join",
        "80.5 J modelled", "Rank 0 ran 76 all-reduces of zeros", "magneton_dist.sync.EarlyExit",
        "examples/uneven_inputs/train.py:87 train", "bit-equal",
    ):
        assert fact in head


def test_every_joule_says_where_it_comes_from(audit, page, runs):
    words = page(audit, runs).words
    figures = re.findall(r"([\d,.]+ [mk]?J)\b(?! modelled| shadow)", words)
    assert figures
    for figure in figures:  # only ends of intervals stand without their kind, beside their mean
        assert f"to {figure}" in words


def test_bands_lie_on_one_axis_with_the_work_that_was_left(audit, page, runs):
    island = page(audit, runs).island
    assert island["span_us"] == 2_027_000
    join, early = (run["ranks"] for run in island["runs"])
    # ten steps of 40 to 44 ms: rank 0 has no work left after 432 ms
    assert (join[0]["note_us"], early[0]["note_us"]) == (432_000, 432_000)
    assert join[0]["codes"].endswith("ts")
    assert early[0]["codes"].endswith("tr")
    assert join[0]["note_waste"]
    assert not early[0]["note_waste"]
    assert "note" not in join[1]
    assert sum(join[1]["us"]) == 2_027_000


def test_bars_are_joules_on_one_scale_with_a_whisker(audit, page):
    built = page(audit)
    widths = [float(re.search(r"width:([\d.]+)%", s["style"]).group(1)) for s in built.tags("span") if "style" in s]
    shadow = [s["title"] for s in built.tags("span") if s.get("class") == "s-shadow"]
    assert shadow == ["shadow 199 J modelled"] * 2
    # the dearest job's interval ends at 534.762 * 1.03 J, the full width of the first chart
    assert sum(widths[:5]) == pytest.approx(100 / 1.03, abs=0.05)
    whisker = next(i["style"] for i in built.tags("i") if i.get("class") == "whisker")
    left, width = (float(n) for n in re.findall(r"([\d.]+)%", whisker))
    assert left == pytest.approx(97 / 1.03, abs=0.05)
    assert left + width == pytest.approx(100.0, abs=0.01)


def test_unmeasured_shows_seconds_and_no_joule(troubled, page):
    words = page(troubled).words
    assert "Seconds by state" in words
    assert "unmeasured" in words
    assert not re.search(r"\d [mk]?J\b", words)
    assert "2 of 4 runs failed (exit codes 0, 0, 137, 1)" in words


def test_findings_open_with_the_keyboard_and_the_first_is_open(audit, page):
    details = [d for d in page(audit).tags("details") if d.get("class") == "finding"]
    assert ["open" in d for d in details] == [True, False]


def test_commands_mark_what_differs_and_settings_are_compared(audit, page):
    built = page(msgspec.structs.replace(audit, settings={"env.OMP_NUM_THREADS": {"join": "1"}}))
    assert re.findall(r"<mark>(.*?)</mark>", built.source) == ["join", "early-exit"]
    assert "env.OMP_NUM_THREADS 1 unset" in built.words


def test_alone_has_no_comparison(alone, page, runs):
    words = page(alone, runs[:1]).words
    assert "AUDITED ALONE" in words.upper()
    assert "against" not in words


def test_hosts_beyond_a_few_are_counted_and_an_unknown_processor_is_left_out(alone, page):
    machine = msgspec.structs.replace(alone.machine, hosts=[f"node-{n}" for n in range(6)], cpu="", cores=0)
    words = page(msgspec.structs.replace(alone, machine=machine)).words
    assert "node-0, node-1, node-2, node-3 and 2 more" in words
    assert "0 cores" not in words


def test_what_would_be_saved_is_a_table_with_what_its_joules_are(alone, page):
    slow = Counterfactual("<b>rank 1</b>", "rank", "join", 9.0, 1.0, 0.1, 50.0, "modelled")
    built = page(msgspec.structs.replace(alone, counterfactuals=[slow]))
    assert "If it were as fast as its like" in built.words
    assert "<b>rank 1</b>" in built.words
    assert "all that the devices would draw in the time saved" in built.words


def test_many_findings_are_cut(audit, page):
    many = msgspec.structs.replace(audit, findings=audit.findings * 40)
    built = page(many)
    assert len([d for d in built.tags("details") if d.get("class") == "finding"]) == 50
    assert "30 more in audit.json" in built.words


def test_page_of_128_ranks_with_endless_intervals_is_bounded(crowd, page):
    audit, run = crowd
    edges = np.arange(30_001, dtype=np.int64) * ((run.end_ns - run.start_ns) // 30_000) + run.start_ns
    states = pl.DataFrame(
        {"start_ns": edges[:-1], "end_ns": edges[1:], "phase": ["working"] * 30_000,
         "activity": ["compute", "wait", "transfer"] * 10_000},
        schema=STATES.schema,
    )
    built = page(audit, [RunBands("join", 0, run.start_ns, run.end_ns, "modelled",
                                  {rank: RankBands(states) for rank in run.ranks})])
    ranks = built.island["runs"][0]["ranks"]
    assert len(ranks) == 16
    assert all(len(rank["us"]) <= 5_000 and rank["slice_us"] > 0 for rank in ranks)
    assert "112 ranks hidden" in built.words
    assert "cut into slices" in built.words
    assert len(built.source) < 1_500_000


def test_a_cause_tells_how_it_was_found_and_its_names_are_text(audit, page):
    cause = Cause("setting", "torch.<b>x</b>", {"join": "True", "early-exit": "False"})
    finding = msgspec.structs.replace(audit.findings[0], cause=cause, proof="proved", diagnosis=["proved: <i>x</i>"])
    built = page(msgspec.structs.replace(audit, findings=[finding]))
    assert "torch.<b>x</b>" in built.words
    assert "proved: <i>x</i>" in built.words
