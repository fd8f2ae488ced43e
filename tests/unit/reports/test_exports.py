"""Waits and states as tables, and figures as metrics, of three ranks that are counted by hand."""

from __future__ import annotations

import polars as pl

from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import StateShare
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.records.manifest import Manifest
from magneton_dist.reports.prometheus import prometheus_text
from magneton_dist.reports.tables import csv, state_table, wait_table

from .test_waits import drawn


def test_every_call_with_its_wait():
    table = wait_table(drawn([1, 11], [4, 12]))
    assert set(table["op"]) == {"allreduce_"}
    rows = table.select("rank", "step", pl.col("start_s", "wait_s", "transfer_s").round(9), "culprit", "method").rows()
    assert rows == [
        (0, 0, 0.001, 0.003, 0.005, 1, "durations"), (0, 1, 0.011, 0.001, 0.007, 1, "durations"),
        (1, 0, 0.004, 0.0, 0.005, None, "durations"), (1, 1, 0.012, 0.0, 0.007, None, "durations"),
    ]  # fmt: skip


def test_states_over_time():
    assert state_table(drawn([1], [4])).rows() == [
        (0, 0.0, 0.01, "working", "compute"), (1, 0.0, 0.01, "working", "compute"),
    ]  # fmt: skip


def summary(rank: int, joules: float | None) -> RankSummary:
    waits = pl.DataFrame({"culprit": [2, 2, None], "wait_s": [0.25, 0.5, 9.0]}, schema_overrides={"culprit": pl.Int32})
    idle = pl.DataFrame(
        [(0, "loader", "", None, 1, 2_000_000), (1, "loader", "", None, 1, 1_000_000), (0, "sync", "", None, 1, 7)],
        schema=HOST_TIMES.schema, orient="row",
    )  # fmt: skip
    return RankSummary(
        rank=rank, node='a"b\\c\nd', device="cuda:0", window_s=3.0, watt_seconds={}, energy_j=joules, steps=7,
        states={"working/wait": StateShare(1.0, joules), "working/compute": StateShare(2.0, None)},
        energy_kind="modelled", energy_source="", waits=waits, host_times=idle,
    )  # fmt: skip


def test_texts_of_a_csv_are_harmless():
    written = csv(pl.DataFrame({"name": ["a\x1b[2Jb\u202ec", None], "n": [1, 2]})).decode()
    assert written == "name,n\na\ufffd[2Jb\ufffdc,1\n,2\n"


def test_metrics():
    manifest = Manifest("my audit", "join", 1, "", 2, [], 0, [], {}, {})
    text = prometheus_text(manifest, {0: summary(0, 124.5), 1: summary(1, None)})
    lines = text.splitlines()
    run = 'audit="my audit",variant="join",repeat="1",rank="{}"'
    node = r'node="a\"b\\c\nd"'
    wait = f'{run.format(0)},{node},phase="working",activity="wait"'
    assert f"magneton_dist_state_seconds{{{wait}}} 1" in lines
    assert f'magneton_dist_state_joules{{{wait},kind="modelled"}} 124.5' in lines
    assert f'magneton_dist_wait_seconds{{{run.format(1)},culprit="2"}} 0.75' in lines
    assert f'magneton_dist_idle_seconds{{{run.format(1)},cause="loader"}} 0.003' in lines
    # what is not known has no sample: of the joules, only those of rank 0's wait and of rank 0
    assert len([line for line in lines if "_joules{" in line]) == 2
    for name in {line.split("{")[0] for line in lines if not line.startswith("#")}:
        assert lines.count(f"# TYPE {name} gauge") == 1
