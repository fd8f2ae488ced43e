from __future__ import annotations

import polars as pl
import pytest

from magneton_dist.energy.model import WATTS_KEYS, modelled_power, watt_seconds
from magneton_dist.errors import RecordError
from magneton_dist.meters import load_profile
from magneton_dist.records.schema import POWER

S = 1_000_000_000


def states(*rows: tuple[float, float, str, str]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["start_ns", "end_ns", "phase", "activity"], orient="row")
    return frame.with_columns((pl.col("start_ns", "end_ns") * S).cast(pl.Int64))


RUN = states(
    (10.0, 12.0, "working", "compute"),
    (12.0, 12.5, "working", "overlap"),
    (12.5, 13.0, "working", "transfer"),
    (13.0, 16.0, "finished", "wait"),
    (16.0, 17.0, "finished", "idle"),
    (17.0, 18.0, "working", "unresolved"),
    (18.0, 20.0, "finished", "released"),
)


def test_each_activity_has_its_published_watts():
    power = POWER.validate(modelled_power(RUN, load_profile("h200").nominal(), "GPU-1"), "here")
    assert power["watts"].to_list() == [138, 138, 126, 124, 122, 130, 74]
    assert (power["t_ns"] / S).to_list() == [12, 12.5, 13, 16, 17, 18, 20]
    assert (power["window_ns"] / S).to_list() == [2, 0.5, 0.5, 3, 1, 1, 2]
    assert power["sensor"].unique().to_list() == ["modelled"]
    assert power["device"].unique().to_list() == ["GPU-1"]


def test_joules_under_any_watts_are_seconds_times_watts():
    seconds = watt_seconds(RUN)
    assert seconds == {
        "bare_idle": 2.0, "compute": 2.5, "context_idle": 1.0,
        "transfer": 0.5, "unresolved": 1.0, "wait": 3.0,
    }  # fmt: skip
    for watts in load_profile("h200").corners()[::7]:
        power = modelled_power(RUN, watts, "cpu")
        integral_j = (power["watts"] * power["window_ns"] / S).sum()
        assert sum(seconds[key] * watts[key] for key in seconds) == pytest.approx(integral_j, rel=1e-12)


def test_time_in_no_state_has_no_watts():
    power = modelled_power(
        states((1, 2, "working", "compute"), (4, 5, "working", "wait")), load_profile("h200").nominal(), "cpu"
    )
    assert power.select("t_ns", "watts", "window_ns").rows() == [
        (2 * S, 138, S), (4 * S, None, 2 * S), (5 * S, 124, S),
    ]  # fmt: skip


def test_states_of_no_length_and_no_states_at_all_make_no_rows():
    nominal = load_profile("h200").nominal()
    run = states((1, 1, "working", "wait"), (1, 2, "working", "compute"))
    assert modelled_power(run, nominal, "cpu")["watts"].to_list() == [138]
    empty = states((1, 1, "working", "wait")).clear()
    assert POWER.validate(modelled_power(empty, nominal, "cpu"), "here").is_empty()
    assert watt_seconds(empty) == {}


def test_overlapping_states_are_refused():
    overlapping = states((1, 3, "working", "compute"), (2, 4, "working", "wait"))
    with pytest.raises(RecordError, match="overlap"):
        modelled_power(overlapping, load_profile("h200").nominal(), "cpu")


def test_an_activity_that_no_profile_knows_is_refused():
    with pytest.raises(RecordError, match="dreaming"):
        watt_seconds(states((1, 2, "working", "dreaming")))


def test_every_key_of_the_model_is_in_the_profile():
    assert set(WATTS_KEYS.values()) == set(load_profile("h200").nominal())
