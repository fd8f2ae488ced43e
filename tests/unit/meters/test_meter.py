from __future__ import annotations

import pytest

from magneton_dist.meters import NullMeter
from magneton_dist.meters.meter import Counter

S = 1_000_000_000


def test_the_null_meter_knows_nothing_and_never_says_zero():
    meter = NullMeter("GPU-1")
    reading = meter.read()
    assert (reading.watts, reading.joules) == (None, None)
    assert (meter.provenance, meter.period_s) == ("unmeasured", 0.0)
    assert reading.reason


def test_counter_counts_from_its_first_reading_and_gives_watts_between_ticks():
    counter = Counter(limit_w=1000)
    assert counter.update(0, 5000.0) == 0.0
    assert counter.watts is None
    assert counter.update(2 * S, 5200.0) == 200.0
    assert counter.watts == 100.0
    assert counter.update(3 * S, 5200.0) == 200.0  # no tick: the watts of the last one stand
    assert (counter.watts, counter.tick_ns) == (100.0, 2 * S)
    assert counter.update(4 * S, 5300.0) == 300.0
    assert counter.watts == 50.0


def test_counter_undoes_wrap_around():
    counter = Counter(limit_w=1000, range_j=65_536.0)
    counter.update(0, 65_500.0)
    assert counter.update(S, 64.0) == pytest.approx(100.0)
    assert counter.update(2 * S, 164.0) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([(0, 5000.0), (S, 4000.0)], "jumped by -1000 J"),  # no range: it may not run backwards
        ([(0, 5000.0), (S, 7001.0)], "jumped by 2001 J"),  # 2 s at 1000 W is all that is possible
        ([(0, 5000.0), (11 * S, 5000.0)], "has not moved for 11 s"),
    ],
)
def test_an_impossible_or_stuck_counter_is_not_trusted_again(readings, words):
    counter = Counter(limit_w=1000)
    results = [counter.update(t, raw) for t, raw in readings]
    assert results[-1] is None
    assert words in counter.fault
    assert counter.update(12 * S, 8000.0) is None


def test_a_late_tick_is_no_jump():
    counter = Counter(limit_w=1000)
    counter.update(0, 0.0)
    # the energy of 100 ms arrives within 1 ms of polling
    assert counter.update(S // 1000, 100.0) == 100.0


def test_a_gap_in_which_the_counter_may_have_wrapped_unseen_is_not_filled():
    counter = Counter(limit_w=1000, range_j=65_536.0)
    counter.update(0, 100.0)
    assert counter.update(120 * S, 200.0) is None
    assert "wrapped" in counter.fault
