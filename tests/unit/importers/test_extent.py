"""How far a trace reaches, and with which one event less it would reach far less."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.importers.extent import FEW, MUCH_BY_ONE, Extent

events = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 5, 300, 10**6])), min_size=1, max_size=40)
Row = tuple[int, int, int]


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["start_ns", "end_ns", "name"], orient="row")


@given(events, st.integers(1, 40))
def test_it_is_that_of_all_events_however_they_come(given_: list[tuple[int, int]], part: int) -> None:
    rows = [(start, start + length, n) for n, (start, length) in enumerate(given_)]
    extent = Extent(frame(rows[first : first + part]) for first in range(0, len(rows), part))
    start, end = min(s for s, _, _ in rows), max(e for _, e, _ in rows)
    assert extent.span_ns == (start, end)
    # by leaving out each in turn
    lengths = {
        n: max(e for _, e, m in rows if m != n) - min(s for s, _, m in rows if m != n)
        for _, _, n in (rows if len(rows) >= FEW else ())
    }  # fmt: skip
    alone = extent.alone()
    if alone is not None:
        left = alone.end_ns - alone.start_ns
        assert lengths[alone.event.name] == left < (1 - MUCH_BY_ONE) * (end - start)
        rest = alone.without(frame(rows))
        assert (rest.height, Extent([rest]).span_ns) == (len(rows) - 1, (alone.start_ns, alone.end_ns))
        return
    for s, e, n in rows if lengths else ():
        if lengths[n] < (1 - MUCH_BY_ONE) * (end - start):  # its start is far out, and it lasts until the others begin
            assert s == start
            assert min(first for first, _, m in rows if m != n) <= e < end


def test_events_without_names_count_too() -> None:
    extent = Extent([pl.DataFrame({"start_ns": [*range(30), 40], "end_ns": [*range(1, 31), 5000]})])
    alone = extent.alone()
    assert alone is not None
    assert (alone.event.name, alone.start_ns, alone.end_ns, alone.apart_ns) == (-1, 0, 30, 10)


@pytest.mark.parametrize(
    ("event", "apart_ns"),
    [
        ((7, 5000), -23),  # lasts too long
        ((-5000, -4999), 4999),  # too early
        ((5000, 5001), 4970),  # too late
        ((-5000, 5000), -5000),  # around all others
    ],
)
def test_one_event_beyond_all_others(event: tuple[int, int], apart_ns: int) -> None:
    rows = frame([*((n, n + 1, 0) for n in range(30)), (*event, 1)])
    alone = Extent([rows]).alone()
    assert alone is not None
    assert (alone.event.name, alone.start_ns, alone.end_ns, alone.apart_ns) == (1, 0, 30, apart_ns)
    assert alone.without(rows)["name"].to_list() == [0] * 30


def test_a_step_that_begins_long_before_all_else_may_have_waited() -> None:
    assert Extent([frame([*((n, n + 1, 0) for n in range(30)), (-5000, 12, 1)])]).alone() is None
