"""Which operator launched what, in real traces: by the profiler's external ids, and by when it was launched."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from magneton_dist.importers import kineto
from magneton_dist.importers.kineto import read_trace

NEW = ("hta-nccl-meta-1of2xA100/rank-0.json.gz", "tracelens/b200__eager_trace.json.gz")
OLD = "hta-sampled-2of128/rank-0.json.gz"  # has the correlation in the external id's place


@pytest.mark.parametrize("name", NEW)
def test_external_ids_and_times_of_launches_name_the_same_operators(
    traces: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_id = read_trace(traces / name).tables
    assert not [m for m in by_id["faults"]["message"] if "external id" in m]
    without = lambda ops, device: pl.zeros(device.height, pl.Int64, eager=True).to_numpy() - 1  # noqa: E731
    monkeypatch.setattr(kineto, "by_external_id", without)
    by_time = read_trace(traces / name).tables
    assert by_time["activities"]["op_id"].to_list() == by_id["activities"]["op_id"].to_list()
    assert by_id["activities"]["op_id"].drop_nulls().len() > 900
    assert any("have no external id" in m for m in by_time["faults"]["message"])


def test_an_old_trace_without_external_ids_says_so(traces: Path) -> None:
    faults = read_trace(traces / OLD).tables["faults"]["message"]
    assert any(m.startswith("1188 of 1204 activities have no external id of an operator") for m in faults)


def test_shares_of_sms_are_those_of_blocks_over_sms(traces: Path) -> None:
    """On an A100 (108 SMs) NCCL took 1 to 8 channels, not the 32 of 132 that are assumed where nothing says it."""
    activities = read_trace(traces / NEW[0]).tables["activities"]
    collectives = activities.filter(pl.col("kind") == "collective")["sm_share"]
    assert (collectives * 108).round(3).is_in([1.0, 2.0, 4.0, 8.0]).all()
    assert (collectives * 108).max() == pytest.approx(8, abs=1e-3)
    kernels = activities.filter(pl.col("kind") == "kernel")["sm_share"]
    assert (kernels.null_count(), kernels.max()) == (0, 1.0)
    assert activities.filter(pl.col("kind") == "memcpy")["sm_share"].drop_nulls().is_empty()
