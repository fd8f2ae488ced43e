"""Regions in the terminal and on the page."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console

from magneton_dist.records.audit import Audit, Interval, RegionOperator, RegionResult, RegionSide
from magneton_dist.reports.html import write_html
from magneton_dist.reports.regions import MAX_REGIONS, region_change, region_title
from magneton_dist.reports.terminal import render_terminal

from .conftest import HOSTILE


def operator(name: str, joules: float, stack: int | None = 0) -> RegionOperator:
    return RegionOperator(
        name=f"aten.{name}.default", phase="forward", inputs=["float32[24, 128, 16]"],
        outputs=["float32[24, 128, 128]"], stack=stack, seconds=joules / 100, joules=joules, bytes=1_970_000,
    )  # fmt: skip


def side(joules: float, *operators: RegionOperator, stacks: list[list[str]] | None = None) -> RegionSide:
    return RegionSide(
        joules=Interval(joules, (joules * 0.99, joules * 1.01)), seconds=joules / 100, bytes=264_000_000,
        memory_bytes=14_300_000, kernels=None, operators=2 * len(operators), shown=list(operators),
        stacks=stacks or [["model.py:62 attend", "model.py:44 forward"]],
    )  # fmt: skip


def region(title: str = "attention", differs: bool = True, **changes: object) -> RegionResult:
    known = RegionResult(
        title=title, baseline="eager", candidate="sdpa", kind="matched", judgement="differs", phases=["forward"],
        places=12, line="model.py:44 forward", energy_kind="modelled", differs=differs,
        sides={
            "eager": side(12.0, operator("bmm", 7.0), operator("_softmax", 5.0)),
            "sdpa": side(4.0, operator("flash_attention", 4.0, None)),
        },
        energy_ratio=Interval(1 / 3, (0.32, 0.35)), time_ratio=Interval(0.4), difference_j=Interval(-8.0),
        values_error=1e-6, rank_median_j=-4.0, rank_mad_j=0.1, outlier_ranks=[3, 4, 5],
    )  # fmt: skip
    return msgspec.structs.replace(known, **changes)


@pytest.fixture
def regional(audit: Audit) -> Audit:
    assert audit.comparison is not None
    return msgspec.structs.replace(
        audit, regions=[region(), region("gelu", differs=False, judgement="differs by less than 10%")],
        comparison=msgspec.structs.replace(audit.comparison, covered=0.987),
    )  # fmt: skip


def terminal(audit: Audit, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render_terminal(audit, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_lists_the_regions_that_differ(regional: Audit) -> None:
    text = terminal(regional)
    (head,) = [line for line in text.splitlines() if "Regions that differ" in line]
    assert head.split() == ["Regions", "that", "differ", "(J", "modelled,", "per", "step)", "eager", "sdpa", "Change"]
    (row,) = [line for line in text.splitlines() if line.startswith("attention (12 places)")]
    assert row.split()[-6:] == ["12.0", "J", "4.00", "J", "−66.7", "%"]
    assert "model.py:44 forward" in text
    assert "gelu" not in text


def test_the_terminal_names_at_most_ten(regional: Audit) -> None:
    many = msgspec.structs.replace(regional, regions=[region(f"op{i}") for i in range(13)])
    text = terminal(many)
    assert "op9" in text
    assert "op10" not in text
    assert "3 more in audit.json" in text


def test_without_a_difference_the_terminal_is_silent(regional: Audit) -> None:
    calm = msgspec.structs.replace(regional, regions=[region(differs=False)])
    assert "Regions that differ" not in terminal(calm)


def test_where_nothing_can_be_told_the_terminal_names_the_first_regions_and_why(regional: Audit) -> None:
    assert regional.comparison is not None
    comparison = msgspec.structs.replace(regional.comparison, verdict="inconclusive")
    regions = [region(f"op{i}", differs=False, judgement="one run each") for i in range(5)]
    text = terminal(msgspec.structs.replace(regional, regions=regions, comparison=comparison))
    assert "Regions, none shown to differ (J modelled, per step)" in text
    assert [f"op{i} (12 places)" in text for i in range(5)] == [True, True, True, False, False]
    assert text.count("one run each") == 3
    assert "2 more in audit.json" in text
    differing = terminal(msgspec.structs.replace(regional, comparison=comparison))
    assert "Regions that differ" in differing
    assert "gelu" not in differing


def test_one_side_alone_and_unknown_joules_are_worded() -> None:
    sides = {"eager": side(1.0, operator("cumsum", 1.0)), "sdpa": side(0.0)}
    alone = region(sides=sides, energy_ratio=None, time_ratio=None, places=1)
    assert region_change(alone) == ("only eager", None)
    assert region_title(alone) == "attention"
    assert region_change(region(quantity="seconds")) == ("−60.0 %", None)
    sides = {"eager": side(12.0), "sdpa": msgspec.structs.replace(side(4.0), memory_bytes=1_430_000)}
    both = {name: msgspec.structs.replace(x, operators=2) for name, x in sides.items()}
    assert region_change(region(quantity="memory", sides=both)) == ("−90.0 %", None)


def test_memory_is_told_in_bytes(regional: Audit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    finding = msgspec.structs.replace(regional.findings[0], joules=None, share=None, bytes=38_540_000.0)
    audit = msgspec.structs.replace(regional, regions=[region(quantity="memory")], findings=[finding])
    text = terminal(audit)
    assert "Regions that differ (bytes at the peak, per step)" in text
    assert "14.3 MB" in text
    assert "38.5 MB in a step" in text
    built, _ = page(audit, tmp_path)
    assert "eager 14.3 MB alive at the peak" in built.text


class Page(HTMLParser):
    """Nesting of tags, and the visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.silent = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.silent = tag in ("script", "style") or self.silent
        self.text += " "

    def handle_endtag(self, tag: str) -> None:
        self.silent = self.silent and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.text += data


def page(audit: Audit, tmp_path) -> tuple[Page, str]:  # type: ignore[no-untyped-def]
    write_html(audit, [], tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    built = Page(source)
    built.text = " ".join(built.text.split())
    return built, source


def test_the_page_opens_a_region_on_both_sides(regional: Audit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    built, _ = page(regional, tmp_path)
    # details and summary: a keyboard opens them without a script
    regions = [attrs for tag, attrs in built.tags if tag == "details" and "region" in (attrs.get("class") or "")]
    assert [attrs["class"] for attrs in regions] == ["region differs", "region"]
    text = built.text[built.text.index("Regions Operators") :]
    for fact in (
        "99 % of the traced steps' cost", "attention (12 places)", "matched · forward · model.py:44",
        "eager 12.0 J modelled", "sdpa 4.00 J modelled", "aten.bmm.default", "58 % of this side",
        "float32[24, 128, 16] → float32[24, 128, 128]",
        "model.py:62 attend", "called from", "aten.flash_attention.default", "264 MB moved",
        "14.3 MB alive at the peak",
        "values differ by at most 1.0e-06", "far from it ranks 3–5", "−4.00 J modelled",
    ):  # fmt: skip
        assert fact in text, fact


def test_no_region_no_section(audit: Audit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    built, _ = page(audit, tmp_path)
    assert not [attrs for tag, attrs in built.tags if tag == "details" and "region" in (attrs.get("class") or "")]


def test_names_of_the_job_never_become_markup(regional: Audit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    bad = msgspec.structs.replace(operator("x", 1.0), name=HOSTILE, phase=HOSTILE, inputs=[HOSTILE], outputs=[HOSTILE])
    hostile = region(
        HOSTILE, baseline=HOSTILE, line=HOSTILE, judgement=HOSTILE, phases=[HOSTILE, "b"],
        sides={HOSTILE: side(1.0, bad, stacks=[[HOSTILE, HOSTILE]]), "sdpa": side(2.0, bad)},
    )  # fmt: skip
    audit = msgspec.structs.replace(regional, regions=[hostile])
    built, source = page(audit, tmp_path)
    assert len([tag for tag, _ in built.tags if tag == "script"]) == 2
    assert "</script><script>alert(1)</script>" in built.text
    assert "\x1b" not in source
    assert "\u202e" not in source
    text = terminal(audit)
    assert "\x1b[31m" not in text
    assert "\u202e" not in text


def test_the_page_stays_bounded(regional: Audit, tmp_path) -> None:  # type: ignore[no-untyped-def]
    stacks = [[f"/a/long/path/to/a/module_{i}.py:{i} function" for i in range(6)] for _ in range(24)]
    many = [operator("bmm", 1.0, i) for i in range(24)]
    crowded = region(sides={"eager": side(12.0, *many, stacks=stacks), "sdpa": side(4.0, *many, stacks=stacks)})
    audit = msgspec.structs.replace(regional, regions=[crowded] * 200)
    built, source = page(audit, tmp_path)
    assert f"{200 - MAX_REGIONS} more in audit.json" in built.text
    assert len(source) < 4_000_000
