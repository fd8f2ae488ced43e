"""Hosts that spin for their device: told from the main thread's clock, silent where it slept. Seconds by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from magneton_dist.detect import host
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.host_times import HOST_TIMES

from .conftest import summary


def waited(sync_s: float, spin_s: float | None) -> RankSummary:
    """A rank of 10 steps in 1 s, of which 2 were captured and waited so long together."""
    known = {"sync": sync_s} if spin_s is None else {"sync": sync_s, "spin": spin_s}
    rows = [(3, kind, "", None, 4, int(s * 1e9)) for kind, s in known.items()]
    table = pl.DataFrame(rows, schema=HOST_TIMES.schema, orient="row")
    return replace(summary(0, {"working/unresolved": 1.0}), host_times=table, captured_steps=2)


def test_cpu_time_that_two_captured_steps_burnt_is_carried_to_all_ten(runs):
    (finding,) = host.alone(runs([waited(0.12, 0.1)]))
    assert finding.kind == "host-spin"
    assert finding.title == "hosts keep a core busy for 50% of their time with calls that wait for the device"
    assert finding.seconds == pytest.approx(0.5)
    assert (finding.joules, finding.energy_kind, finding.confidence) == (None, "unmeasured", 0.9)
    assert finding.evidence["waiting_s"] == pytest.approx(0.6)
    assert finding.evidence["captured_steps"] == 2
    assert "cudaDeviceScheduleBlockingSync" in finding.fix


@pytest.mark.parametrize("spin_s", [0.0, 0.039])
def test_hosts_that_sleep_while_they_wait_are_left_alone(runs, spin_s):
    assert host.alone(runs([waited(0.16, spin_s)])) == []


def test_where_no_clock_was_read_long_waits_are_told_with_less_confidence(runs):
    (finding,) = host.alone(runs([waited(0.16, None)]))
    assert (finding.kind, finding.confidence) == ("host-spin", 0.6)
    assert finding.seconds == pytest.approx(0.8)


def test_a_run_without_captured_kernels_is_silent(runs):
    assert host.alone(runs([summary(0, {"working/compute": 1.0})])) == []


def test_waiting_is_no_reason_why_a_device_idled():
    assert host.idle_seconds([waited(0.12, 0.1)]) == {}


def test_the_operator_that_waits_is_named_by_the_time_that_hosts_stood_in_it(runs):
    rows = [
        (3, "sync", "aten::_local_scalar_dense", 1, 2, 90_000_000), (3, "sync", "aten::to", None, 2, 30_000_000),
        (3, "spin", "", None, 4, 100_000_000),
    ]  # fmt: skip
    table = pl.DataFrame(rows, schema=HOST_TIMES.schema, orient="row")
    (finding,) = host.alone(runs([replace(waited(0.12, 0.1), host_times=table)]))
    assert finding.where.what == "synchronisation within aten::_local_scalar_dense"
    assert finding.where.stack == ["train.py:7 main"]
    assert finding.seconds == pytest.approx(0.5)
    assert finding.evidence["within"] == ["aten::_local_scalar_dense 90 ms", "aten::to 30 ms"]
    assert "neither a trace nor a device's meter" in str(finding.evidence["joules_are"])
