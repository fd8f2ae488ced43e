from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.cluster.clocks import clock_identity, combine, estimate, measure
from magneton_dist.records.manifest import Clock

TRIP = st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6))


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.lists(TRIP, min_size=1, max_size=20))
def test_the_true_offset_lies_within_the_error(offset_ns: int, trips: list[tuple[int, int, int]]) -> None:
    # the other clock is ours minus the offset; the reading happens `there` after sending, `back` before receiving
    seen = [(sent, sent + there - offset_ns, sent + there + back) for sent, there, back in trips]
    clock = estimate(seen)
    assert abs(clock.offset_ns - offset_ns) <= clock.error_ns
    assert clock.error_ns <= (min(there + back for _, there, back in trips) + 1) // 2


def test_the_fastest_round_trip_counts() -> None:
    clock = estimate([(0, 5_000, 1_000), (10_000, 20_050, 10_100), (50_000, 70_000, 59_000)])
    assert clock == Clock(offset_ns=10_050 - 20_050, error_ns=50)


def test_a_clock_that_is_ours_has_an_offset_within_a_round_trip() -> None:
    clock = measure(time.monotonic_ns)
    assert abs(clock.offset_ns) <= clock.error_ns


def test_drift_between_start_and_end_widens_the_error() -> None:
    clock = combine(Clock(offset_ns=100, error_ns=10), Clock(offset_ns=200, error_ns=20))
    assert clock == Clock(offset_ns=155, error_ns=65)  # 90 ... 220


def test_one_process_has_one_clock() -> None:
    assert clock_identity() == clock_identity()
    assert len(clock_identity().split("/")) == 2
