from __future__ import annotations

import itertools
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.energy.attribution import PowerIntegral, attribute
from magneton_dist.energy.model import modelled_power
from magneton_dist.meters import load_profile
from magneton_dist.records.schema import COUNTERS, POWER

S = 1_000_000_000


def power(*readings: tuple[float, float | None], window_s: float = 0.0) -> pl.DataFrame:
    rows = [("GPU-1", round(t * S), watts, "scripted", round(window_s * S)) for t, watts in readings]
    return pl.DataFrame(rows, schema=POWER.schema, orient="row")


def counters(*readings: tuple[float, float]) -> pl.DataFrame:
    return pl.DataFrame(
        [("GPU-1", round(t * S), j, "scripted") for t, j in readings], schema=COUNTERS.schema, orient="row"
    )


def states(*rows: tuple[float, float, str, str]) -> pl.DataFrame:
    return pl.DataFrame(
        [(round(a * S), round(b * S), phase, activity) for a, b, phase, activity in rows],
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "phase": pl.String, "activity": pl.String},
        orient="row",
    )


def test_a_reading_stands_for_the_time_since_the_one_before():
    # 0-1 s: 100 W (the first reading's own window); 1-3 s: 200 W; 3-4 s: 50 W
    table = power((3, 200.0), (1, 100.0), (4, 50.0), window_s=1)
    result = attribute(table, states((0, 2, "working", "compute"), (2, 4, "working", "wait")))
    assert result.states["working/compute"].j == pytest.approx(100 + 200)
    assert result.states["working/wait"].j == pytest.approx(200 + 50)
    assert result.total_j == pytest.approx(550)
    assert result.residual_j == pytest.approx(0)
    assert (result.unmeasured_s, result.notes) == (0, ())


def test_a_failed_reading_is_unmeasured_not_zero():
    table = power((1, 100.0), (2, None), (4, 100.0), window_s=1)
    run = states((0, 1, "working", "compute"), (1, 2, "working", "wait"), (2, 4, "working", "idle"))
    result = attribute(table, run)
    assert result.states["working/compute"].j == pytest.approx(100)
    assert result.states["working/wait"].j is None
    assert result.states["working/wait"].s == 1.0
    assert result.states["working/idle"].j == pytest.approx(200)
    assert result.unmeasured_s == pytest.approx(1)
    assert result.total_j is None  # a quarter of the window is not known
    assert "not measured for 1.00 s of 4.00 s" in result.notes[0]


def test_a_short_gap_leaves_the_total_known_and_its_state_in_the_residual():
    table = power((50, 100.0), (50.5, None), (100, 100.0), window_s=50)
    run = states((0, 50, "working", "idle"), (50, 50.6, "working", "wait"), (50.6, 100, "finished", "idle"))
    result = attribute(table, run)
    assert result.total_j == pytest.approx(9950)
    assert result.states["working/wait"].j is None
    assert result.residual_j == pytest.approx(10)  # the tenth of a second of the wait that was measured


def test_without_a_meter_everything_is_unmeasured():
    result = attribute(POWER.empty(), states((0, 2, "working", "compute")), COUNTERS.empty())
    assert (result.total_j, result.residual_j, result.counter_j) == (None, None, None)
    assert result.states["working/compute"].j is None
    assert result.states["working/compute"].s == 2


def test_time_before_the_first_and_after_the_last_reading_is_unmeasured():
    result = attribute(power((2, 100.0), (3, 100.0), window_s=1), states((0, 4, "working", "compute")))
    assert result.unmeasured_s == pytest.approx(2)
    assert result.total_j is None


def test_energy_in_no_state_is_the_residual():
    table = power((10, 100.0), window_s=10)
    result = attribute(table, states((0, 4, "working", "compute"), (6, 10, "finished", "idle")))
    assert result.total_j == pytest.approx(1000)
    assert result.residual_j == pytest.approx(200)
    table, run = power((12, 100.0), window_s=12), states((0, 10, "working", "compute"))
    wider = attribute(table, run, window_ns=(0, 12 * S))
    assert (wider.total_j, wider.residual_j) == (pytest.approx(1200), pytest.approx(200))


def test_the_counter_checks_the_integral():
    table, run = power((10, 100.0), window_s=10), states((0, 10, "working", "compute"))
    agrees = attribute(table, run, counters((-1, 0.0), (5, 606.0), (11, 1212.0)))
    assert (agrees.counter_j, agrees.notes) == (pytest.approx(1010), ())
    disagrees = attribute(table, run, counters((0, 0.0), (10, 572.0)))
    assert disagrees.counter_j == pytest.approx(572)
    assert "1000.0 J, the energy counter says 572.0 J" in disagrees.notes[0]
    # readings that end halfway say nothing about the whole window
    assert attribute(table, run, counters((0, 0.0), (5, 505.0))).counter_j is None


def test_a_shared_device_is_apportioned_and_said():
    table, run = power((10, 100.0), window_s=10), states((0, 10, "working", "compute"))
    result = attribute(table, run, counters((0, 0.0), (10, 1000.0)), share=0.25)
    assert (result.total_j, result.counter_j) == (pytest.approx(250), pytest.approx(250))
    assert result.states["working/compute"].j == pytest.approx(250)
    assert "25% of its energy is apportioned" in result.notes[0]


def test_a_long_uptime_costs_no_precision():
    origin = 400 * 86_400  # after 400 days a double no longer holds single ns
    table = power((origin + 1, 100.0), window_s=1)
    start_ns, end_ns = np.array([origin * S + 10]), np.array([origin * S + 13])
    assert PowerIntegral(table).joules(start_ns, end_ns)[0] == pytest.approx(300e-9, rel=1e-6)


@st.composite
def runs(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame]:
    gaps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=20))
    watts = draw(st.lists(st.none() | st.floats(1, 700), min_size=len(gaps), max_size=len(gaps)))
    table = power(*zip(np.cumsum(gaps).tolist(), watts, strict=True), window_s=draw(st.integers(1, 30)))
    edges = sorted(draw(st.sets(st.integers(-60, 1100), min_size=2, max_size=15)))
    names = st.tuples(st.sampled_from(["working", "finished"]), st.sampled_from(["compute", "wait", "idle"]))
    rows = [(a, b, *draw(names)) for a, b in itertools.pairwise(edges)]
    return table, states(*rows)


@given(runs())
@settings(max_examples=100, deadline=None)
def test_states_and_residual_add_up_to_an_integral_counted_second_by_second(run):
    table, table_of_states = run
    known: dict[int, float] = {}  # second -> watts
    previous = None
    for _, t_ns, watts, _, window_ns in table.rows():
        start_ns = t_ns - window_ns if previous is None else previous
        known |= dict.fromkeys(range(start_ns // S, t_ns // S), watts)
        previous = t_ns
    result = attribute(table, table_of_states)
    start_s, end_s = table_of_states["start_ns"].min() // S, table_of_states["end_ns"].max() // S
    measured = [known[s] for s in range(start_s, end_s) if known.get(s) is not None]
    assert result.unmeasured_s == pytest.approx(end_s - start_s - len(measured), abs=1e-6)
    assert sum(state.s for state in result.states.values()) == pytest.approx(end_s - start_s)
    if len(measured) >= 0.99 * (end_s - start_s):
        assert result.total_j == pytest.approx(sum(measured))
        sums = [state.j for state in result.states.values() if state.j is not None]
        assert sum(sums) + result.residual_j == pytest.approx(sum(measured))
    else:
        assert result.total_j is None


def test_modelled_power_conserves_every_joule_of_its_states():
    run = states((0, 2, "working", "compute"), (2, 5, "finished", "wait"), (5, 6, "finished", "released"))
    result = attribute(modelled_power(run, load_profile("h200").nominal(), "cpu"), run)
    assert {key: state.j for key, state in result.states.items()} == pytest.approx(
        {"working/compute": 276.0, "finished/wait": 372.0, "finished/released": 74.0}
    )
    assert (result.total_j, result.residual_j) == (pytest.approx(722), pytest.approx(0, abs=1e-9))


def test_an_hour_of_readings_and_a_million_states_take_a_moment():
    rng = np.random.default_rng(0)
    t_ns = np.arange(72_000) * (S // 20)
    watts = rng.uniform(70, 700, len(t_ns))
    table = pl.DataFrame({"device": "d", "t_ns": t_ns, "watts": watts, "sensor": "s", "window_ns": 0})
    edges = np.linspace(0, 3599 * S, 1_000_001).astype(np.int64)
    many = pl.DataFrame({
        "start_ns": edges[:-1], "end_ns": edges[1:], "phase": "working",
        "activity": pl.Series(["compute", "wait"] * 500_000),
    })  # fmt: skip
    started = time.process_time()
    result = attribute(table, many)
    assert time.process_time() - started < 5
    assert result.residual_j == pytest.approx(0, abs=1e-3)
