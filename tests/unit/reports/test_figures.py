import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.records.audit import Interval
from magneton_dist.reports.figures import (
    clean,
    evidence_items,
    interval,
    one_line,
    percent,
    percent_change,
    quantity,
    ranks_text,
    ratio_change,
    step_range,
)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1412.0, "J", "1,412 J"),
        (9999.0, "J", "9,999 J"),
        (14_120.0, "J", "14.12 kJ"),
        (2.5e6, "J", "2.500 MJ"),
        (0.00225, "J", "2.250 mJ"),
        (0.0, "J", "0 J"),
        (-81.25, "J", "−81.25 J"),
        (0.0431, "s", "43.10 ms"),
        (7200.0, "s", "7,200 s"),
        (76_000_000, "B", "76 MB"),
        (1_500, "B", "1.5 kB"),
        (124.0, "W", "124.0 W"),
    ],
)
def test_quantity_has_a_fitting_prefix_and_four_digits(value, unit, words):
    assert quantity(value, unit) == words


def test_interval_shares_its_prefix_and_shows_what_its_width_deserves():
    assert interval(Interval(534.762, (518.7, 550.8)), "J") == ("535 J", "519 to 551 J")
    assert interval(Interval(0.0022513, (0.0021838, 0.0023188)), "J") == ("2.251 mJ", "2.184 to 2.319 mJ")
    assert interval(Interval(12.0), "s") == ("12.00 s", None)


def test_ratio_is_told_as_a_change():
    assert ratio_change(Interval(0.79, (0.72, 0.86))) == ("−21 %", "−28 % to −14 %")
    assert ratio_change(Interval(1.002, (0.98, 1.02))) == ("0 %", "−2 % to +2 %")
    assert ratio_change(Interval(1.033)) == ("+3.3 %", None)
    assert percent_change(1.0) == "0.0 %"
    assert [percent_change(ratio) for ratio in (9.9, 10, 214.57, 13_442)] == ["+890.0 %", "×10", "×215", "×13,442"]
    assert percent(0.0042) == "0.4 %"
    assert percent(0.37) == "37 %"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no rank"),
        ([0], "rank 0"),
        ([3, 0, 1, 2, 7], "ranks 0–3, 7"),
        (list(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks_in_words(ranks, words):
    assert ranks_text(ranks) == words


def test_evidence_takes_its_units_from_the_keys_and_its_kind_from_the_finding():
    evidence = {
        "collectives": 76, "zero_bytes": 76_000_000, "shadow_j": 198.5, "late_share": 0.8, "wait_s": 0.0021,
        "shadow_seconds": 1.595, "share_of_rank_seconds": 0.25,
        "late_ranks": [1, 3], "group": "0",
    }
    assert evidence_items(evidence, "modelled") == [
        ("collectives", "76"), ("zero bytes", "76 MB"), ("shadow", "198.5 J modelled"), ("late share", "80 %"),
        ("wait", "2.100 ms"), ("shadow", "1.595 s"), ("share of rank seconds", "25 %"),
        ("late ranks", "1, 3"), ("group", "0"),
    ]


def test_clean_disarms_escapes_and_direction_and_says_what_it_cut():
    assert clean("a\x1b[31mb\u202ec\x00\r") == "a\ufffd[31mb\ufffdc\ufffd\ufffd"
    assert clean("漢字 \U0001f525") == "漢字 \U0001f525"
    assert clean("x" * 10_000, 10) == "xxxxxxxxxx… (+9,990 characters)"
    assert one_line("a\n\t b") == "a � b"


@given(st.text(max_size=400))
def test_cleaned_text_holds_nothing_a_terminal_obeys(text):
    cleaned = clean(text, 100)
    assert not [c for c in cleaned if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(cleaned) <= 130


def test_one_step_is_no_range():
    assert step_range((8, 8)) == "step 8"
    assert step_range((8, 1200)) == "steps 8 to 1,200"
    assert step_range(None) == ""
