"""How far a trace reaches, and with which one event less it would reach far less."""

from __future__ import annotations

import polars as pl
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
    shortest = min(lengths.values(), default=end - start)
    alone = extent.alone()
    if alone is None:
        # one that begins before and ends after all others is only half left out
        both = [n for s, e, n in rows if s == start and e == end]
        assert shortest >= (1 - MOST_BY_ONE) * (end - start) or (both and lengths[both[0]] == shortest)
    else:
        assert lengths[alone[0]] <= alone[1] < (1 - MOST_BY_ONE) * (end - start)


def test_events_without_names_count_too() -> None:
    extent = Extent()
    extent.add(pl.DataFrame({"start_ns": [*range(30), 40], "end_ns": [*range(1, 31), 5000]}))
    assert extent.alone() == (-1, 30)
