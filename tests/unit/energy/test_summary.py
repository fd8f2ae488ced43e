from __future__ import annotations

import pickle

import numpy as np
import pytest

from magneton_dist.energy.summary import RankSummary, corner_joules, run_joules
from magneton_dist.records.audit import StateShare


def rank(energy_j: float | None, **watt_seconds: float) -> RankSummary:
    return RankSummary(
        rank=0, node="n", device="cpu", window_s=3.0, states={"working/wait": StateShare(3.0, energy_j)},
        watt_seconds=watt_seconds, energy_j=energy_j, energy_kind="modelled", energy_source="by hand",
    )  # fmt: skip


def test_energy_of_a_run_is_its_ranks_sum_unless_one_is_unknown():
    assert run_joules([rank(10.0), rank(5.5)]) == 15.5
    assert run_joules([rank(10.0), rank(None)]) is None


def test_corners_are_told_from_seconds_alone():
    ranks = [rank(1.0, wait=2.0, compute=1.0), rank(1.0, wait=3.0, bare_idle=4.0)]
    corners = [
        {"wait": 100.0, "compute": 200.0, "bare_idle": 50.0},
        {"wait": 10.0, "compute": 20.0, "bare_idle": 5.0, "transfer": 7.0},
    ]
    expected = np.array([5 * 100 + 200 + 4 * 50, 5 * 10 + 20 + 4 * 5])
    assert corner_joules(ranks, corners) == pytest.approx(expected)


def test_a_summary_travels_between_processes():
    summary = rank(10.0, wait=2.0)
    again = pickle.loads(pickle.dumps(summary))
    assert (again.states, again.watt_seconds, again.waits.shape) == (summary.states, {"wait": 2.0}, (0, 0))
