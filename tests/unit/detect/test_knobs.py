"""Advice on settings: where somebody set one that costs something, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from magneton_dist.detect.knobs import advice
from magneton_dist.tracer.knobs import emit_knobs


class Rows:
    """Takes what the tracer would spool."""

    def __init__(self) -> None:
        self.knobs: dict[str, str] = {}

    def put(self, _kind: str, name: str, value: str) -> None:
        self.knobs[name] = value

    def fault(self, *_: object) -> None:
        raise AssertionError


@pytest.fixture
def knobs() -> dict[str, str]:
    """The settings of this process, as the tracer records them."""
    rows = Rows()
    emit_knobs(rows)  # type: ignore[arg-type]
    return rows.knobs


def test_torchs_own_defaults_are_not_advised_against(knobs):
    assert advice("alone", knobs) == []
    # and what is asked for is recorded under that name
    assert knobs["torch.is_anomaly_enabled"] == "False"
    assert knobs["torch.are_deterministic_algorithms_enabled"] == "False"


def test_a_switch_that_was_left_on(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    rows = Rows()
    torch.autograd.set_detect_anomaly(True)
    try:
        emit_knobs(rows)  # type: ignore[arg-type]
    finally:
        torch.autograd.set_detect_anomaly(False)
    one, other = advice("alone", rows.knobs)
    assert one.startswith("alone: advice, not proved: NCCL_P2P_DISABLE=1: ")
    assert other.startswith("alone: advice, not proved: torch.is_anomaly_enabled=True: ")


@pytest.mark.parametrize(("value", "told"), [("DETAIL", True), ("INFO", False), ("OFF", False)])
def test_values_that_cost_nothing_are_silent(value, told):
    assert bool(advice("alone", {"env.TORCH_DISTRIBUTED_DEBUG": value})) is told
