"""Who waited for whom, as the page draws it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from magneton_dist.records.schema import COLLECTIVES
from magneton_dist.reports import waits
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.waits import wait_charts
from magneton_dist.timeline.arrivals import join_arrivals, own_arrivals
from magneton_dist.timeline.clocks import RankClock
from magneton_dist.timeline.states import STATES

MS = 1_000_000


def drawn(*starts_ms: list[float], length_ms: float = 10.0) -> RunBands:
    """A rank per list: when it comes to each all-reduce; the n-th ends 10 n + 9 ms after the start on all ranks."""
    tables = {
        rank: pl.DataFrame(
            [(n, "0", len(starts_ms), rank, n, "allreduce_", "ddp", 8, "float32", None, None, n,
              round(at * MS), round(at * MS), round((10 * n + 9) * MS), None) for n, at in enumerate(starts)],
            schema=COLLECTIVES.schema, orient="row",
        )
        for rank, starts in enumerate(starts_ms)
    }  # fmt: skip
    joined = join_arrivals([own_arrivals(t, r) for r, t in tables.items()], {r: RankClock() for r in tables})
    states = pl.DataFrame([(0, 10 * MS, "working", "compute")], schema=STATES.schema, orient="row")
    ranks = {r: RankBands(states, collectives=t, arrivals=joined.of(r)) for r, t in tables.items()}
    return RunBands("alone", 0, 0, round(10 * MS * len(starts_ms[0])), "modelled", ranks)


def test_ranks_by_collectives_and_culprits():
    # rank 2 is last in the first two all-reduces, rank 0 in the third
    (chart,), (island,) = wait_charts([drawn([1, 11, 28], [2, 12, 22], [6, 16, 23])])
    assert island["ranks"] == [0, 1, 2]
    assert island["us"] == [[5000, 5000, 0], [4000, 4000, 6000], [0, 0, 5000]]
    assert [column["culprit"] for column in island["columns"]] == [2, 2, 0]
    assert [column["at_us"] for column in island["columns"]] == [6000, 16000, 28000]
    assert [(c["rank"], c["waited"], c["width"]) for c in chart["culprits"]] == [
        (2, "18.0 ms", 100.0), (0, "11.0 ms", pytest.approx(61.11)),
    ]  # fmt: skip
    assert chart["culprits"][0]["detail"] == "last in 2 of 3"
    assert [row["waited"] for row in chart["longest"]] == ["11.0 ms", "9.00 ms", "9.00 ms"]


def test_many_collectives_share_columns_without_losing_time(monkeypatch):
    monkeypatch.setattr(waits, "MAX_COLUMNS", 4)
    run = drawn([10 * n + 1 for n in range(10)], [10 * n + 3 for n in range(10)])
    (chart,), (island,) = wait_charts([run])
    assert len(island["columns"]) == 4
    assert [sum(row) for row in island["us"]] == [20_000, 0]
    assert chart["shared"]


def test_many_ranks_leave_out_those_that_waited_least(monkeypatch):
    monkeypatch.setattr(waits, "MAX_ROWS", 2)
    (chart,), (island,) = wait_charts([drawn([1], [5], [2])])
    assert island["ranks"] == [0, 2]
    assert chart["hidden"] == 1


def test_without_waits_there_is_no_chart():
    assert wait_charts([drawn([1, 11], [1, 11])]) == ([], [])
    assert wait_charts([drawn([1.0], [1.0001])]) == ([], [])  # 0.1 of 20,000 us is no wait
    run = drawn([1, 11], [2, 12])
    none = {r: replace(b, arrivals=b.arrivals.clear()) for r, b in run.ranks.items()}
    assert wait_charts([replace(run, ranks=none)]) == ([], [])
