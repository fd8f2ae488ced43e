"""Steps with captured kernels tell what the others' time was; a trace of its own tells nothing of the rest. In ms."""

from __future__ import annotations

import json

import polars as pl
import pytest

from magneton_dist.energy.accounting import Supply, account
from magneton_dist.meters import load_profile
from magneton_dist.meters.sensor import Sensor
from magneton_dist.records.manifest import MeterUsed, RankRun
from magneton_dist.records.schema import POWER, TABLES
from magneton_dist.timeline.arrivals import join_arrivals, own_arrivals
from magneton_dist.timeline.window import Window

MS = 1_000_000


def tables(second: str) -> dict[str, pl.DataFrame]:
    """Two steps of 10 ms, the second of this kind; in the first a kernel ran for 6 ms, then nobody looked."""
    found = {name: table.empty() for name, table in TABLES.items()}
    steps = [(i, 10 * i * MS, 10 * (i + 1) * MS, kind, None, None) for i, kind in enumerate(("kernels", second))]
    found["steps"] = pl.DataFrame(steps, schema=TABLES["steps"].schema, orient="row")
    ran = [("GPU-0", 7, "kernel", "gemm", 0, 6 * MS, None, None, None)]
    found["activities"] = pl.DataFrame(ran, schema=TABLES["activities"].schema, orient="row")
    detail = json.dumps({"start_ns": 0, "activities": 1})
    rows = [("kernels", 10 * MS, detail)]
    found["marks"] = pl.DataFrame(rows, schema=TABLES["marks"].schema, orient="row")
    return found


@pytest.mark.parametrize(
    ("reason", "notes"),
    [("as configured", ()), ("auto: modelled as h200, because no RAPL",
                             ("energy.meter auto: modelled as h200, because no RAPL",))],
)  # fmt: skip
def test_why_a_model_stands_in_for_a_meter_is_noted(reason: str, notes: tuple[str, ...]) -> None:
    meter, made = MeterUsed("modelled:h200", "modelled", "a model", reason=reason), tables("kernels")
    joined = join_arrivals([own_arrivals(made["collectives"], 0)], {})
    rank, window = RankRun(0, 0, "a", device="GPU-0", meter=meter), Window(0, 10 * MS, None)
    supply = Supply(load_profile("h200"), POWER.empty())
    assert account(rank, made, joined.of(0), window, supply).summary.notes == notes


@pytest.mark.parametrize(
    ("calibrated", "notes"),
    [("GPU-1, NVML of an H200", []),
     ("GPU-9, NVML of an A100", ["calibrated with GPU-9, NVML of an A100; this meter is NVML of an H200"])],
)  # fmt: skip
def test_a_profile_of_another_meter_is_noted(calibrated: str, notes: list[str]) -> None:
    meter, made = MeterUsed("nvml", "measured", "NVML of an H200", "GPU-0"), tables("kernels")
    joined = join_arrivals([own_arrivals(made["collectives"], 0)], {})
    rank, window = RankRun(0, 0, "a", device="GPU-0", meter=meter), Window(0, 10 * MS, None)
    sensor = Sensor(name="nvml-instant", period_s=0.1, window_s=0.025)
    supply = Supply(None, POWER.empty(), sensor=sensor, calibrated=calibrated)
    said = account(rank, made, joined.of(0), window, supply).summary.notes
    assert [note.removeprefix("energy.profile was ") for note in said if "energy.profile" in note] == notes


def test_a_collective_whose_peers_are_not_known_is_exposed_all_the_same() -> None:
    # a kernel for 4 ms, a collective from 3 to 8 ms of the captured 10 ms, of a rank whose peer left no record
    made = tables("kernels")
    ran = [("GPU-0", 7, "kernel", "gemm", 0, 4 * MS, None, None, None),
           ("GPU-0", 8, "collective", "nccl", 3 * MS, 8 * MS, None, None, None)]  # fmt: skip
    made["activities"] = pl.DataFrame(ran, schema=TABLES["activities"].schema, orient="row")
    marks = [("kernels", 10 * MS, json.dumps({"start_ns": 0, "activities": 2}))]
    made["marks"] = pl.DataFrame(marks, schema=TABLES["marks"].schema, orient="row")
    joined = join_arrivals([own_arrivals(made["collectives"], 0)], {})
    nothing = MeterUsed("null", "unmeasured", "unmeasured: nobody could")
    found = account(
        RankRun(0, 0, "a", device="GPU-0", meter=nothing), made, joined.of(0), Window(0, 10 * MS, None),
        Supply(None, POWER.empty()),
    ).summary  # fmt: skip
    assert {key: share.s for key, share in found.states.items()} == pytest.approx(
        {"working/compute": 3e-3, "working/overlap": 1e-3, "working/unresolved": 4e-3, "working/idle": 2e-3}
    )
    assert found.unjoined_s == pytest.approx(4e-3)
    assert found.notes == ()  # that there is no meter is said once, by its own words


def accounted(second: str) -> tuple[dict[str, tuple[float, float | None]], tuple[str, ...]]:
    made = tables(second)
    watts = [("GPU-0", t * MS, w, "simulated", 2 * MS) for t, w in zip(range(2, 21, 2), [600.0] * 3 + [100.0] * 2
             + [400.0] * 5, strict=True)]  # fmt: skip
    power = pl.DataFrame(watts, schema=POWER.schema, orient="row")
    joined = join_arrivals([own_arrivals(made["collectives"], 0)], {})
    found = account(
        RankRun(0, 0, "a", device="GPU-0"), made, joined.of(0), Window(0, 20 * MS, None), Supply(None, power)
    ).summary
    return {key: (share.s * 1e3, share.j) for key, share in found.states.items()}, found.notes


def test_the_captured_step_tells_what_the_other_was() -> None:
    states, notes = accounted("measured")
    assert states["working/compute"][0] == pytest.approx(12.0)
    assert states["working/idle"][0] == pytest.approx(8.0)
    total = 6e-3 * 600 + 4e-3 * 100 + 10e-3 * 400
    assert sum(j for _, j in states.values() if j is not None) == pytest.approx(total)
    assert any(note.startswith("kernels were captured in 50.0% of the window") for note in notes)


def test_what_lies_outside_a_profilers_trace_stays_unresolved() -> None:
    states, notes = accounted("kernels")  # a trace has no other steps
    assert {key: s for key, (s, _) in states.items()} == pytest.approx(
        {"working/compute": 6.0, "working/idle": 4.0, "working/unresolved": 10.0}
    )
    assert not any("captured" in note for note in notes)
