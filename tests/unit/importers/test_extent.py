"""How far a trace reaches, and without which few events it would reach far less."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.importers.extent import FEW, MANY, MUCH, Extent

events = st.lists(
    st.tuples(st.integers(0, 100), st.sampled_from([0, 1, 5, 300, 10**5])), min_size=1, max_size=24, unique=True
)
Row = tuple[int, int, int]


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["start_ns", "end_ns", "name"], orient="row")


def span(rows: list[Row]) -> tuple[int, int]:
    return min(start for start, _, _ in rows), max(end for _, end, _ in rows)


@given(events, st.integers(1, 24))
def test_it_is_that_of_all_events_however_they_come(given_: list[tuple[int, int]], part: int) -> None:
    rows = [(97 * start * start, 97 * start * start + length, n) for n, (start, length) in enumerate(given_)]
    extent = Extent(frame(rows[first : first + part]) for first in range(0, len(rows), part))
    assert extent.span_ns == span(rows)
    strays = extent.strays()
    length = span(rows)[1] - span(rows)[0]
    count = 1
    if strays is not None:
        gone = {event.name for event in strays.events}
        count = len(gone)
        assert count <= FEW
        rest = [row for row in rows if row[2] not in gone]
        assert (strays.start_ns, strays.end_ns) == span(rest)
        assert strays.end_ns - strays.start_ns < (1 - MUCH[count - 1]) * length
    if len(rows) >= MANY and (strays is None or count > 1):
        for out in rows:  # one is not enough, or lasts until the others begin
            start, end = span([row for row in rows if row != out])
            assert end - start >= (1 - MUCH[0]) * length or out[0] < start <= out[1]


def test_events_without_names_count_too() -> None:
    strays = Extent([pl.DataFrame({"start_ns": [*range(30), 40], "end_ns": [*range(1, 31), 5000]})]).strays()
    assert strays is not None
    assert (strays.events, strays.start_ns, strays.end_ns) == (((40, 5000, -1),), 0, 30)


@pytest.mark.parametrize(
    ("strays", "apart"),
    [
        ([(7, 5000)], []),  # lasts too long
        ([(-5000, -4999)], [(-5000, -4999)]),  # too early
        ([(5000, 5001)], [(5000, 5001)]),  # too late
        ([(-5000, 5000)], []),  # around all others
        ([(5000, 5001), (5002, 5003)], [(5000, 5001), (5002, 5003)]),
        ([(-5000, -4999), (-4900, -4899), (-4800, -4799)], [(-5000, -4999), (-4900, -4899), (-4800, -4799)]),
        ([(3, 4800), (5000, 5001)], [(5000, 5001)]),
    ],
)
def test_a_few_events_beyond_all_others(strays: list[tuple[int, int]], apart: list[tuple[int, int]]) -> None:
    rows = frame([*((n, n + 1, 0) for n in range(30)), *((*event, 1) for event in strays)])
    found = Extent([rows]).strays()
    assert found is not None
    assert sorted(event[:2] for event in found.events) == sorted(strays)
    assert sorted(event[:2] for event in found.apart(1000)) == sorted(apart)


@pytest.mark.parametrize("starts", [(-5000,), (5000, 5010, 5020, 5030)])
def test_what_may_have_waited_and_what_is_not_few_are_none(starts: tuple[int, ...]) -> None:
    lasting = 5012 if starts[0] < 0 else 5
    rows = [*((n, n + 1, 0) for n in range(30)), *((start, start + lasting, 1) for start in starts)]
    assert Extent([frame(rows)]).strays() is None
