"""How far a trace reaches, and with which one event less it would reach far less."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.importers.extent import FEW, MOST_BY_ONE, Extent

events = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 5, 300, 10**6])), min_size=1, max_size=40)


@given(events, st.integers(1, 40))
def test_it_is_that_of_all_events_however_they_come(given_: list[tuple[int, int]], part: int) -> None:
    rows = [(start, start + length, n) for n, (start, length) in enumerate(given_)]
    extent = Extent()
    for first in range(0, len(rows), part):
        extent.add(pl.DataFrame(rows[first : first + part], schema=["start_ns", "end_ns", "name"], orient="row"))
    start, end = min(s for s, _, _ in rows), max(e for _, e, _ in rows)
    assert extent.span_ns() == (start, end)
    # by leaving out each in turn
    lengths = {
        n: max(e for _, e, m in rows if m != n) - min(s for s, _, m in rows if m != n)
        for _, _, n in (rows if len(rows) >= FEW else ())
    }  # fmt: skip
    alone = extent.alone()
    if alone is not None:
        assert lengths[alone[0]] == alone[1] < (1 - MOST_BY_ONE) * (end - start)
        return
    for s, e, n in rows if lengths else ():
        if lengths[n] < (1 - MOST_BY_ONE) * (end - start):  # its start is far out, and it lasts until the others begin
            assert s == start
            assert min(first for first, _, m in rows if m != n) <= e < end


def test_events_without_names_count_too() -> None:
    extent = Extent()
    extent.add(pl.DataFrame({"start_ns": [*range(30), 40], "end_ns": [*range(1, 31), 5000]}))
    assert extent.alone() == (-1, 30)


@pytest.mark.parametrize(
    ("event", "rest_ns"),
    [
        ((7, 5000), 30),  # lasts too long
        ((-5000, -4999), 30),  # too early
        ((5000, 5001), 30),  # too late
        ((-5000, 5000), 30),  # around all others
        ((-5000, 12), None),  # begins long before them, as a step does that waits for data
    ],
)
def test_one_event_apart(event: tuple[int, int], rest_ns: int | None) -> None:
    extent = Extent()
    others = [(n, n + 1, 0) for n in range(30)]
    extent.add(pl.DataFrame([*others, (*event, 1)], schema=["start_ns", "end_ns", "name"], orient="row"))
    assert extent.alone() == (None if rest_ns is None else (1, rest_ns))
