from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.records.schema import POWER, STEPS
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.reports.compact import MAX_READINGS, compact_rank
from magneton_dist.timeline.states import STATES

US = 1_000


def run_of(rows, end_us, power=(), steps=()):
    """One rank; rows of (start µs, end µs, phase, activity), power of (end µs, watts)."""
    states = pl.DataFrame(
        [(a * US, b * US, phase, activity) for a, b, phase, activity in rows], schema=STATES.schema, orient="row"
    )
    readings = pl.DataFrame(
        [("cpu", t * US, w, "modelled", None) for t, w in power], schema=POWER.schema, orient="row"
    )
    marks = pl.DataFrame(
        [(k, t * US, t * US + 1, "measured", None, None) for k, t in enumerate(steps)],
        schema=STEPS.schema, orient="row",
    )
    return RunBands("v", 0, 0, end_us * US, "modelled", {0: RankBands(states, readings, steps=marks, device="cpu")})


def test_bands_are_durations_and_letters_with_gaps_and_merged_neighbours():
    rows = [
        (0, 10, "working", "compute"), (10, 12, "working", "compute"), (15, 20, "working", "wait"),
        (20, 30, "finished", "wait"), (30, 40, "finished", "transfer"),
    ]
    compact = compact_rank(run_of(rows, 50), 0)
    assert compact["us"] == [12, 3, 5, 20, 10]
    assert compact["codes"] == "c-ws-"
    assert compact["slice_us"] == 0


def test_only_the_window_is_shown():
    compact = compact_rank(run_of([(-10, 5, "working", "idle"), (45, 90, "working", "compute")], 50), 0)
    assert (compact["us"], compact["codes"]) == ([5, 40, 5], "i-c")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 40), st.integers(-3, 15), st.sampled_from(["compute", "wait"])), max_size=8))
def test_every_microsecond_is_of_the_first_state_that_reaches_it(rows):
    """Also where states overlap, end before they start or lie outside the window, as files may say."""
    rows = sorted((start, start + length, activity) for start, length, activity in rows)
    shown, until = ["-"] * 30, 0
    for start, end, activity in rows:
        for us in range(max(start, until), min(end, 30)):
            shown[us] = activity[0]
        until = max(until, start, end)
    compact = compact_rank(run_of([(a, b, "working", activity) for a, b, activity in rows], 30), 0)
    assert "".join(us * code for us, code in zip(compact["us"], compact["codes"], strict=True)) == "".join(shown)
    assert not any(a == b for a, b in zip(compact["codes"], compact["codes"][1:], strict=False))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from(["compute", "wait", "transfer", None])), min_size=60,
             max_size=120),
    st.integers(8, 40),
)
def test_slicing_keeps_the_seconds_of_every_state(pieces, most):
    rows, truth, now = [], Counter(), 0
    for length, activity in pieces:
        if activity:
            rows.append((now, now + length, "working", activity))
        truth[(activity or "-")[0]] += length
        now += length
    compact = compact_rank(run_of(rows, now), 0, most)
    assert len(compact["us"]) == len(compact["codes"]) <= max(most, len(truth))
    assert sum(compact["us"]) == now
    spent = Counter()
    for us, code in zip(compact["us"], compact["codes"], strict=True):
        spent[code] += us
    for code in truth:
        # every piece is rounded to whole µs
        assert spent[code] == pytest.approx(truth[code], abs=len(compact["us"]))


def test_slices_put_states_side_by_side_in_a_fixed_order():
    rows = [(t, t + 5, "working", "wait" if t % 10 else "compute") for t in range(0, 1_000, 5)]
    compact = compact_rank(run_of(rows, 1_000), 0, 20)
    assert compact["slice_us"] == 100.0
    assert compact["us"] == [50] * 20
    assert compact["codes"] == "cw" * 10


def test_power_keeps_failed_readings_unknown():
    compact = compact_rank(run_of([(0, 40, "working", "idle")], 40, [(10, 70.0), (20, None), (40, 90.04)]), 0)
    # without a sensor window the first reading speaks for no time
    assert compact["power_us"] == [10, 10, 20]
    assert compact["watts"] == [None, None, 90.0]


def test_many_power_readings_keep_their_energy():
    readings = [(t, 100.0 if t <= 50_000 else 300.0) for t in range(10, 100_010, 10)]
    compact = compact_rank(run_of([(0, 100_000, "working", "idle")], 100_000, readings), 0)
    assert len(compact["watts"]) <= MAX_READINGS
    joules = sum(us * w for us, w in zip(compact["power_us"], compact["watts"], strict=True) if w) / 1e6
    # 0.05 s at 100 W and 0.05 s at 300 W, less the first 10 µs of which nothing is known
    assert joules == pytest.approx(20.0, rel=2e-3)


def test_long_runs_keep_some_of_their_steps():
    compact = compact_rank(run_of([], 10_000, steps=range(0, 10_000, 2)), 0)
    assert compact["steps"][:3] == [0, 3, 6]
    assert compact["steps_us"][:3] == [0, 6, 12]


def test_nothing_recorded_is_a_gap():
    compact = compact_rank(run_of([], 10), 0)
    assert (compact["us"], compact["codes"], compact["watts"]) == ([10], "-", [])
