"""Energy of kernels in closed form; times in ms, watts constant over each reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.energy.kernels import KERNEL_ENERGY, kernel_energy
from magneton_dist.records.schema import ACTIVITIES, POWER

MS = 1_000_000
IDLE_W = 100.0


def power(*readings: tuple[float, float | None]) -> pl.DataFrame:
    """Readings as (end, watts); the first begins at 0."""
    rows, before = [], 0.0
    for end, watts in readings:
        rows.append(("GPU-0", round(end * MS), watts, "simulated", round((end - before) * MS)))
        before = end
    return pl.DataFrame(rows, schema=POWER.schema, orient="row")


def activities(*rows: tuple[Any, ...]) -> pl.DataFrame:
    """Kind, name, start and end in ms, and the share of SMs where it is recorded."""
    known = [
        ("GPU-0", 7, kind, name, round(a * MS), round(b * MS), None, None, *(share or [None]))
        for kind, name, a, b, *share in rows
    ]
    return pl.DataFrame(known, schema=ACTIVITIES.schema, orient="row")


def shared(
    ran: pl.DataFrame, watts: pl.DataFrame, end: float, *windows: tuple[float, float], **more: Any
) -> dict[str, Any]:
    captured = (np.array(windows or [(0, end)]) * MS).astype(np.int64).reshape(-1, 2)
    found = kernel_energy(ran, watts, captured, (0, round(end * MS)), IDLE_W, **more)
    assert dict(found.schema) == KERNEL_ENERGY.schema
    return {row["name"]: row for row in found.to_dicts()}


def test_a_share_of_no_sms_is_none_that_is_known() -> None:
    ran = activities(("kernel", "none", 0, 2, 0.0), ("kernel", "half", 4, 6, 0.5))
    found = shared(ran, power((10, 300.0)), 10)
    assert {name: found[name]["joules"] for name in ("none", "half")} == pytest.approx({"none": 0.4, "half": 0.4})
    assert (found["none"]["assumed_s"], found["half"]["assumed_s"]) == (2e-3, 0.0)
    assert sum(row["joules"] for row in found.values()) == pytest.approx(3.0)


def test_kernels_alone_gaps_and_idling_are_rows_that_add_up() -> None:
    ran = activities(("kernel", "gemm", 0, 4), ("kernel", "gemm", 6, 8), ("memcpy", "Memcpy", 8, 9))
    found = shared(ran, power((4, 600.0), (6, 110.0), (8, 500.0), (10, 200.0)), 10)
    assert found["gemm"]["count"] == 2
    assert found["gemm"]["seconds"] == pytest.approx(6e-3)
    assert found["gemm"]["joules"] == pytest.approx(4e-3 * 500 + 2e-3 * 400)
    assert found["gemm"]["low_j"] == found["gemm"]["high_j"] == pytest.approx(found["gemm"]["joules"])
    assert found["Memcpy"]["joules"] == pytest.approx(0.1)
    assert found["nothing ran"]["joules"] == pytest.approx(2e-3 * 10 + 1e-3 * 100)
    assert found["context idle"]["joules"] == pytest.approx(1.0)
    total = 4e-3 * 600 + 2e-3 * 110 + 2e-3 * 500 + 2e-3 * 200
    assert sum(row["joules"] for row in found.values()) == pytest.approx(total)


def test_what_runs_at_once_shares_by_the_sms_it_can_hold_within_bounds() -> None:
    ran = activities(("kernel", "gemm", 0, 3), ("collective", "nccl", 1, 5))
    found = shared(ran, power((6, 500.0)), 6)
    # 2 ms together: 132 SMs for the kernel against 32 for the collective
    assert found["gemm"]["joules"] == pytest.approx(0.4 + 0.8 * 132 / 164)
    assert found["nccl"]["joules"] == pytest.approx(0.8 + 0.8 * 32 / 164)
    assert (found["gemm"]["low_j"], found["gemm"]["high_j"]) == pytest.approx((0.4, 1.2))
    assert (found["nccl"]["low_j"], found["nccl"]["high_j"]) == pytest.approx((0.8, 1.6))


def test_what_runs_at_once_shares_by_the_sms_that_the_records_say() -> None:
    # 300 W beyond idling for 2 ms: a gemm that fills all SMs beside a collective of 33 blocks on 132 SMs
    recorded = activities(("kernel", "gemm", 0, 2, 1.0), ("collective", "nccl", 0, 2, 0.25))
    found = shared(recorded, power((2, IDLE_W + 300.0)), 2)
    assert found["gemm"]["joules"] == pytest.approx(0.6 * 1.0 / 1.25)
    assert found["nccl"]["joules"] == pytest.approx(0.6 * 0.25 / 1.25)
    assert (found["gemm"]["assumed_s"], found["nccl"]["assumed_s"]) == (0.0, 0.0)
    # of one nothing is recorded: a collective is then taken to hold 32 of 132
    partly = activities(("kernel", "gemm", 0, 2, 0.5), ("collective", "nccl", 0, 2))
    found = shared(partly, power((2, IDLE_W + 300.0)), 2)
    assert found["nccl"]["joules"] == pytest.approx(0.6 * (32 / 132) / (32 / 132 + 0.5))
    assert (found["gemm"]["assumed_s"], found["nccl"]["assumed_s"]) == (0.0, 0.002)


def test_time_that_was_not_captured_is_a_row_and_unmeasured_is_not_zero() -> None:
    ran = activities(("kernel", "gemm", 0, 2), ("kernel", "late", 8, 9))
    found = shared(ran, power((5, 300.0), (7, 300.0), (10, None)), 10, (0, 4))
    assert found["gemm"]["joules"] == pytest.approx(0.4)
    assert found["nothing ran"]["joules"] == pytest.approx(0.4)  # 2 to 4
    assert found["not known what ran"]["joules"] is None
    assert found["late"]["joules"] is None
    assert found["context idle"]["joules"] is None  # for a third of the time readings are lacking
    assert found["late"]["seconds"] == pytest.approx(1e-3)


def test_what_an_idle_device_would_draw_is_no_reading() -> None:
    found = shared(activities(("kernel", "gemm", 0, 2)), POWER.empty(), 10)
    assert {name: row["joules"] for name, row in found.items()} == dict.fromkeys(
        ("gemm", "nothing ran", "context idle")
    )


def test_a_moment_without_readings_takes_nothing_from_what_ran_at_other_times() -> None:
    ran = activities(("kernel", "gemm", 0, 2), ("kernel", "gone", 2, 3), ("kernel", "gemm", 4, 400))
    found = shared(ran, power((2, 300.0), (3, None), (400, 300.0)), 400)
    assert found["gemm"]["joules"] == pytest.approx(398e-3 * 200)
    assert found["gone"]["joules"] is None
    assert found["nothing ran"]["joules"] == pytest.approx(1e-3 * 200)
    assert found["context idle"]["joules"] == pytest.approx(399e-3 * 100)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["kernel", "collective", "memcpy"]), st.integers(0, 90), st.integers(1, 30)),
             max_size=25),
    st.lists(st.floats(50, 700), min_size=10, max_size=10),
    st.floats(0.1, 1.0),
)  # fmt: skip
def test_nothing_is_lost_whatever_overlaps(ran: list[tuple[str, int, int]], watts: list[float], part: float) -> None:
    table = activities(*((kind, f"{kind} {i}", a, a + n) for i, (kind, a, n) in enumerate(ran)))
    found = shared(table, power(*((10.0 * (i + 1), w) for i, w in enumerate(watts))), 100, (10, 60), share=part)
    assert sum(row["joules"] for row in found.values()) == pytest.approx(part * sum(watts) * 10e-3)
