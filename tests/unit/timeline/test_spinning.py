"""CPU time that was certainly burnt while waiting, counted by hand; times in ms."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from magneton_dist.records.schema import STAMPS
from magneton_dist.timeline.spinning import spun

MS = 1_000_000


def least(stamps: list[tuple[int, int]], *waits: tuple[int, int]) -> float | None:
    """ms spun, by stamps (when, CPU time so far) and waits (start, end)."""
    rows = [(t * MS, cpu * MS, 0) for t, cpu in stamps]
    table = pl.DataFrame(rows, schema=STAMPS.schema, orient="row")
    found = spun(table, np.array(waits, np.int64).reshape(-1, 2) * MS)
    return None if found is None else found / MS


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (100, 60),  # always on the CPU: in the wait as well
        (40, 0),  # asleep in the wait: the rest explains all of it
        (70, 30),  # 40 outside at most, so 30 within at least
        (20, 0),
    ],
)
def test_what_the_rest_of_the_piece_cannot_explain_was_burnt_in_the_wait(cpu, expected):
    assert least([(0, 0), (100, cpu)], (30, 90)) == expected


def test_pieces_are_judged_one_by_one():
    # asleep in the first wait, spinning in the second
    stamps = [(0, 0), (100, 50), (200, 150)]
    assert least(stamps, (50, 100), (120, 160)) == 40
    # over both together 150 ms of CPU time and 90 ms of waits would fit into 200 ms all but 40
    assert least([(0, 0), (200, 150)], (50, 100), (120, 160)) == 40


def test_waits_that_overlap_count_once_and_clocks_read_late_do_no_harm():
    assert least([(0, 0), (100, 101)], (30, 80), (40, 90)) == 60
    assert least([(0, 5), (100, 3)], (30, 80)) == 0


def test_where_no_clock_was_read_nothing_is_known():
    assert least([], (0, 10)) is None
    assert least([(0, 0)], (0, 10)) is None
    assert least([(20, 0), (30, 10)], (0, 10)) is None
    assert least([(0, 0), (100, 100)]) is None
