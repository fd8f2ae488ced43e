"""Collectives that send the same payload twice in a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.distributed as dist
from recorded_steps import record

from magneton_dist.detect.operators.alone import alone
from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.records.audit import Finding, StateShare
from magneton_dist.timeline.sums import WAITS

from .recorded import line_of, runs_of

TRANSFER_S, TRANSFER_J = 0.5, 60.0


@pytest.fixture
def group(tmp_path: Path):
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def told(step) -> list[Finding]:
    """Findings of two ranks that run `step`, each with `TRANSFER_S` in the collectives of its gathers' lines."""
    step()
    tables = record(step)
    runs = runs_of(tables, 2)
    first = StepRecord.of(tables, 0)
    stacks = {n: list(stack) for n, stack in enumerate(dict.fromkeys(first.op_stacks))}
    of_gathers = {
        (name, stack) for name, stack in zip(first.step.graph.names, first.op_stacks, strict=True) if "gather" in name
    }
    rows = [
        {"op": name, "stack_id": n, "exposed_transfer_s": TRANSFER_S / len(of_gathers)}
        for name, stack in of_gathers for n, frames in stacks.items() if tuple(frames) == stack
    ]  # fmt: skip
    waits = pl.DataFrame([{**dict.fromkeys(WAITS.schema), **row} for row in rows], schema=WAITS.schema)
    summaries = {
        rank: replace(
            s, waits=waits, stacks=stacks, window_s=1.0, energy_j=200.0,
            states={**s.states, "working/transfer": StateShare(TRANSFER_S, TRANSFER_J)},
        )
        for rank, s in runs.repeats[0].items()
    }  # fmt: skip
    return alone(VariantRuns("one", [summaries], runs.profile), lambda *_: first)


def test_the_same_payload_twice_is_told_at_the_second_line(group):
    x = torch.randn(4096)

    def step() -> None:
        one, other = [torch.empty(4096)], [torch.empty(4096)]
        dist.all_gather(one, x)
        dist.all_gather(other, x)  # again
        (one[0] * 2 + other[0]).sum().item()

    (finding,) = [f for f in told(step) if f.kind == "redundant-collective"]
    assert "the same payload was sent before in the same step" in finding.title
    assert finding.where.stack[0] == f"{__file__}:{line_of('again', __file__)} step"
    assert finding.evidence["collectives_per_step"] == 1
    # of both ranks, half of the time in transfers, and of its joules
    assert finding.seconds == pytest.approx(2 * TRANSFER_S / 2)
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(2 * TRANSFER_J / 2)


def test_another_payload_is_another_collective(group):
    x = torch.randn(4096)

    def step() -> None:
        one, other = [torch.empty(4096)], [torch.empty(4096)]
        dist.all_gather(one, x)
        dist.all_gather(other, x + 1)
        (one[0] * 2 + other[0]).sum().item()

    assert [f for f in told(step) if f.kind == "redundant-collective"] == []
