"""What the operators of a rank's traced steps cost, small enough to send from every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from magneton_dist.energy.operators import operator_energy
from magneton_dist.energy.replay.results import replayed_joules
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.recorded import StepGraph, step_graph, traced_steps
from magneton_dist.matching.steps import structure
from magneton_dist.meters.profile import Profile
from magneton_dist.timeline.gpu_states import captured
from magneton_dist.timeline.intervals import cover


def traced_step_costs(
    tables: Mapping[str, pl.DataFrame],
    compute_j_per_step: float | None,
    profile: Profile,
    replayed: pl.DataFrame | None = None,
) -> tuple[TracedStep, ...]:
    """Every traced step of a rank, in order.

    An operator's time is that of the kernels that it launched, where all of them were captured, else its time on the
    host.
    Where several have the same operators, each operator's time is the least of them (of those with kernels, if there
    are any): a thread that had to wait for its core, or a device that was busy with something else, says nothing of the
    operator.

    Args:
        tables: of the rank.
        compute_j_per_step: joules that its operators share per measured step; None when unknown.
        profile: watts by operator class, used as weights.
        replayed: `energy.replay.results.REPLAYED` of the run; joules that it measured stand in place of an
            operator's share, and the shares of the others stay as they are.

    Returns:
        Nothing where operators are recorded without their tensors, as in profiler traces: they make no graph.
    """
    if tables["values"].is_empty():
        return ()
    steps = [
        step_graph(tables["ops"], tables["values"], tables["fingerprints"], step)
        for step in traced_steps(tables["ops"])
    ]
    kernels = _whole(tables["activities"], tables["marks"])
    alike: dict[str, list[StepGraph]] = {}
    for step in steps:
        alike.setdefault(structure(step.graph), []).append(step)
    costs: dict[int, TracedStep] = {}
    for known_as, of_structure in alike.items():
        told = [step for step in of_structure if not _launched(step, kernels).is_empty()] or of_structure
        least_ns = np.min([_duration_ns(step, kernels) for step in told], axis=0)
        for step in of_structure:
            end_ns = pl.col("start_ns") + pl.Series(least_ns, dtype=pl.Float64).fill_nan(None).cast(pl.Int64)
            cost = operator_energy(step.ops.with_columns(end_ns=end_ns), tables["values"], compute_j_per_step, profile)
            joules = None if cost["joules"].null_count() else cost["joules"].cast(pl.Float32).to_numpy()
            seconds = cost["seconds"].fill_null(0.0).cast(pl.Float32).to_numpy()
            measured_j = None if replayed is None else replayed_joules(step.ops, tables["values"], replayed)
            known = None
            if measured_j is not None:
                known = np.isfinite(measured_j)
                joules = None if joules is None else np.where(known, measured_j, joules).astype(np.float32)
            costs[step.step] = TracedStep(step.step, known_as, seconds, joules, known)
    return tuple(costs[step.step] for step in steps)


def replay_residual(costs: Sequence[TracedStep], compute_j_per_step: float | None) -> str:
    """What the first traced step's operators add up to once some were replayed, in words; empty when none was."""
    first = costs[0] if costs else None
    if first is None or first.replayed is None or first.joules is None or not compute_j_per_step:
        return ""
    total_j = float(first.joules.sum())
    rest = f"{compute_j_per_step:.4g} J, residual {compute_j_per_step - total_j:+.3g} J"
    return (
        f"{int(first.replayed.sum())} of {len(first.seconds)} operators were replayed: together with the shares of "
        f"the others a step has {total_j:.4g} J, the run says {rest}"
    )


def _whole(activities: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Of `activities`, those of captured windows that lack none."""
    windows, whole = captured(marks, activities)
    return activities.filter(pl.Series(cover(windows[whole], activities["start_ns"].to_numpy()) > 0))


def _launched(step: StepGraph, activities: pl.DataFrame) -> pl.DataFrame:
    return activities.filter(pl.col("op_id").is_in(step.ops["op_id"].implode()))


def _duration_ns(step: StepGraph, activities: pl.DataFrame) -> np.ndarray:
    """(operators,) time of each, NaN where unknown."""
    launched = _launched(step, activities)
    if launched.is_empty():
        return (step.ops["end_ns"] - step.ops["start_ns"]).cast(pl.Float64).to_numpy()
    on_device = launched.group_by("op_id").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    known = step.ops.select("op_id").join(on_device, on="op_id", how="left", maintain_order="left")["ns"]
    return known.fill_null(0).cast(pl.Float64).to_numpy()  # it launched nothing
