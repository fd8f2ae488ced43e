import io
import re

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from magneton_dist.records.audit import Cause
from magneton_dist.reports.terminal import render_finding, render_terminal

AUDITS = ["audit", "alone", "troubled", "hostile"]


def rendered(audit, width=80, **options):
    file = io.StringIO()
    render_terminal(audit, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("name", AUDITS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_fits_its_width(name, width, request):
    lines = rendered(request.getfixturevalue(name), width).splitlines()
    assert max(cell_len(line.rstrip()) for line in lines) <= width


@pytest.mark.parametrize("name", AUDITS)
def test_obeys_no_escape_of_the_job_and_sends_none_through_a_pipe(name, request):
    assert "\x1b" not in rendered(request.getfixturevalue(name))


def test_markup_of_the_job_is_text(hostile):
    assert "[bold]</script>" in rendered(hostile, 200)


def test_says_first_what_a_reader_needs(audit):
    text = rendered(audit, 120)
    head = text[: text.index("Variant")]
    assert "WASTE" in head
    assert "join wastes 15 % (modelled) of its energy" in head
    assert "Rank 0 ran 76 all-reduces of zeros" in head
    panel = text[text.index("shadow-collective") :]
    for fact in (
        "80.5 J modelled (75.7 to 85.3 J), 15 % of join", "rank 0 of join", "collectives 76", "zero bytes 76 MB",
        "examples/uneven_inputs/train.py:87 train", "steps 10 to 47", "magneton_dist.sync.EarlyExit",
    ):
        assert fact in panel


@pytest.mark.parametrize("width", [80, 120])
def test_every_joule_says_where_it_comes_from(audit, width):
    text = rendered(audit, width)
    figures = re.findall(r"[\d,.]+ [mk]?J\b(?! modelled)", text)
    # what is left are the ends of intervals, which stand beside or below their mean
    assert figures
    for figure in figures:
        assert re.search(rf"to {re.escape(figure)}", text)


def test_bars_show_shares_of_joules(audit):
    text = rendered(audit, 120)
    bar = next(line for line in text.splitlines() if "rank 0" in line and "shadow" in line)
    cells = re.findall(r"[█▓▒░╳]", bar)
    # 198.54 of 257.69 J by the simulation's states
    assert cells.count("╳") / len(cells) == pytest.approx(0.770, abs=1.5 / len(cells))
    other = next(line for line in text.splitlines() if "rank 1" in line)
    longest = re.findall(r"[█▓▒░╳]", other)
    assert len(cells) / len(longest) == pytest.approx(257.69 / 277.07, abs=0.03)
    # the longest bar takes what the rank's name and its figures leave
    assert len(longest) == 120 - 12 - 32


def test_unmeasured_shows_no_joules_and_failures_stand_out(troubled):
    text = rendered(troubled)
    assert not re.search(r"\d [mk]?J\b", text)
    assert "unmeasured" in text
    assert "2 FAILED" in text
    assert text.index("Missing") > text.index("shadow-collective")


@pytest.mark.parametrize("name", AUDITS)
def test_a_terminal_that_knows_ascii_only_gets_ascii(name, request):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    render_terminal(request.getfixturevalue(name), Console(file=file, width=80))
    file.flush()
    text = raw.getvalue().decode("ascii")
    assert "XXXXXXXX" in text
    assert "WASTE" in text or "INCONCLUSIVE" in text or "ALONE" in text


def test_many_ranks_are_cut_to_the_worst(crowd):
    text = rendered(crowd[0], 100)
    assert "120 more ranks" in text
    shown = [int(n) for n in re.findall(r"^  rank (\d+)", text, re.M)]
    assert len(shown) == 8
    assert all(rank % 7 == 0 for rank in shown)


def test_colour_marks_the_waste(audit):
    text = rendered(audit, 100, force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[1;31m╳+", text)


def test_settings_that_differ_are_told_and_a_long_list_is_cut(audit):
    settings = {f"torch.x{i}": {"join": "True", "early-exit": "False"} for i in range(10)}
    text = rendered(msgspec.structs.replace(audit, settings=settings), 120)
    assert "torch.x0: True in join, False in early-exit" in text
    assert "torch.x8" not in text
    assert "2 more in audit.json" in text


def test_a_finding_is_told_with_its_cause_and_how_it_was_found(audit):
    cause = Cause("setting", "torch.backends.mkldnn.enabled", {"join": "True", "early-exit": "False"})
    lines = ["counterfactual: aten.mm.default runs other kernels", "proved: it alone"]
    finding = msgspec.structs.replace(audit.findings[0], cause=cause, proof="proved", diagnosis=lines)
    text = rendered(msgspec.structs.replace(audit, findings=[finding]), 120)
    assert "setting torch.backends.mkldnn.enabled (proved)" in text
    assert "how  " in text
    assert "proved: it alone" in text
    file = io.StringIO()
    render_finding(finding, Console(file=file, width=120))
    assert "join: True; early-exit: False" in file.getvalue()
