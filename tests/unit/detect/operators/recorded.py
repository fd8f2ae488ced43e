"""Waste of steps of small torch programs, recorded as in a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from recorded_steps import Tables, record

from magneton_dist.detect.operators.alone import alone
from magneton_dist.detect.operators.flow import Flow
from magneton_dist.detect.operators.waste import step_waste
from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import RankSummary, TracedStep
from magneton_dist.matching.recorded import traced_steps
from magneton_dist.matching.steps import structure
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import Finding, StateShare
from magneton_dist.timeline.sums import WAITS

PROFILE = load_profile("h200")
STEPS = 10


def names(step: Callable[[], object]) -> dict[str, list[str]]:
    """Names of the operators that one call of `step` could do without, by kind, in order of execution."""
    step()
    waste = step_waste(Flow.of(StepRecord.of(record(step), 0)))
    return {
        kind: [waste.flow.names[op] for op in np.nonzero(mask)[0].tolist()]
        for kind, mask in waste.masks.items()
        if mask.any()
    }


def runs_of(tables: Tables, ranks: int = 1, joules_per_step: float | None = 2.0) -> VariantRuns:
    """Runs of `STEPS` steps of which these tables hold the traced ones.

    Nothing but operators takes time, 1 ns for each byte they move, whatever the machine was busy with.
    """
    traced = tuple(_costs(tables, number, joules_per_step) for number in traced_steps(tables["ops"]))
    seconds = float(traced[0].seconds.sum()) * STEPS
    joules = None if joules_per_step is None else joules_per_step * STEPS
    summaries = {
        rank: RankSummary(
            rank=rank, node="a", device="cpu", window_s=seconds, energy_j=joules, energy_source="drawn",
            states={"working/compute": StateShare(seconds, joules)}, watt_seconds={"compute": seconds},
            energy_kind="unmeasured" if joules is None else "modelled", steps=STEPS, waits=WAITS.empty(), traced=traced,
        )
        for rank in range(ranks)
    }  # fmt: skip
    return VariantRuns("one", [summaries], PROFILE)


def _costs(tables: Tables, number: int, joules: float | None) -> TracedStep:
    step = StepRecord.of(tables, number)
    seconds = step.moved_bytes / 1e9
    burnt = None if joules is None else (joules * seconds / seconds.sum()).astype(np.float32)
    return TracedStep(number, structure(step.step.graph), seconds.astype(np.float32), burnt)


def findings(step: Callable[[], object], steps: int = 1, joules_per_step: float | None = 2.0) -> list[Finding]:
    """What is told of a job of two ranks whose steps are calls of `step`, the first ones apart."""
    step()
    tables = record(step, steps)
    runs = runs_of(tables, 2, joules_per_step)
    return alone(runs, lambda variant, repeat, rank, number: StepRecord.of(tables, number))


def line_of(text: str, file: str) -> int:
    """Number of the only line of `file` that ends with `text` as a comment."""
    lines = enumerate(Path(file).read_text().splitlines(), start=1)
    (number,) = [n for n, line in lines if line.endswith(f"# {text}")]
    return number
