"""What the operators of a rank's traced steps cost, small enough to send from every rank."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from magneton_dist.energy.operators import operator_energy
from magneton_dist.energy.summary import TracedStep
from magneton_dist.matching.recorded import step_graph, traced_steps
from magneton_dist.matching.steps import structure
from magneton_dist.meters.profile import Profile


def traced_step_costs(
    tables: Mapping[str, pl.DataFrame], compute_j_per_step: float | None, profile: Profile
) -> tuple[TracedStep, ...]:
    """Every traced step of a rank, in order.

    Args:
        tables: of the rank.
        compute_j_per_step: joules that its operators share per measured step; None when unknown.
        profile: watts by operator class, used as weights.
    """
    out = []
    for step in traced_steps(tables["ops"]):
        record = step_graph(tables["ops"], tables["values"], tables["fingerprints"], step)
        cost = operator_energy(record.ops, tables["values"], compute_j_per_step, profile)
        joules = None if cost["joules"].null_count() else cost["joules"].cast(pl.Float32).to_numpy()
        seconds = cost["seconds"].fill_null(0.0).cast(pl.Float32).to_numpy()
        out.append(TracedStep(step, structure(record.graph), seconds, joules))
    return tuple(out)
