"""What of fetching data a device idled for; ns by hand."""

from __future__ import annotations

import json

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.records.schema import MARKS, STEPS
from magneton_dist.timeline.loading import loading
from magneton_dist.timeline.states import STATES

STEPS_OF_100 = pl.DataFrame(
    [(k, 100 * k, 100 * (k + 1), "measured", None, None) for k in range(3)], schema=STEPS.schema, orient="row"
)


def states(*rows: tuple[int, int, str]) -> pl.DataFrame:
    return pl.DataFrame([(a, b, "working", what) for a, b, what in rows], schema=STATES.schema, orient="row")


def marks(*fetches: tuple[int, int, str]) -> pl.DataFrame:
    rows: list[tuple[str, int, str | None]] = [("python_start", 0, None)]
    for begin, end, what in fetches:
        rows += [("loader_enter", begin, None), ("loader_exit", end, json.dumps({"what": what, "stack_id": 3}))]
    return pl.DataFrame(rows, schema=MARKS.schema, orient="row")


def test_only_what_the_device_idled_for_counts_by_step() -> None:
    # it computes half of the first fetch itself, and the second ends in step 1; step 2 only computes
    done = states((0, 25, "compute"), (25, 60, "idle"), (60, 90, "compute"), (90, 140, "idle"), (140, 300, "compute"))
    fetches = marks((10, 40, "Single"), (95, 130, "Single"), (135, 138, "Multi"), (210, 220, "Single"))
    found = loading(fetches, done, STEPS_OF_100)
    assert found.select("step", "kind", "what", "stack_id", "count", "duration_ns").rows() == [
        (0, "loader", "Single", 3, 1, 15), (1, "loader", "Single", 3, 1, 35), (1, "loader", "Multi", 3, 1, 3),
    ]  # fmt: skip


def test_what_is_not_known_is_not_counted() -> None:
    done = states((0, 100, "unresolved"), (100, 300, "idle"))
    assert loading(marks((10, 90, "Single")), done, STEPS_OF_100).is_empty()
    # after the last step; begun and never ended
    assert loading(marks((310, 390, "Single")), states((0, 400, "idle")), STEPS_OF_100).is_empty()
    assert loading(marks((10, 90, "Single"))[:2], states((0, 400, "idle")), STEPS_OF_100).is_empty()
    assert loading(marks(), done, STEPS_OF_100).is_empty()


def test_a_damaged_mark_is_named() -> None:
    damaged = marks((110, 190, "Single")).with_columns(detail=pl.lit("{"))
    with pytest.raises(RecordError, match="loader_exit"):
        loading(damaged, states((0, 300, "idle")), STEPS_OF_100)
