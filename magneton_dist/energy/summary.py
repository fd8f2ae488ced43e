"""What one rank of one run comes down to: small enough to send, enough to conclude from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from magneton_dist.energy.attribution import Floats
from magneton_dist.records.audit import Corroboration, EnergyKind, StateShare
from magneton_dist.records.host_times import HOST_TIMES


@dataclass(frozen=True, eq=False)
class TracedStep:
    """What the operators of one traced step of a rank cost in a step; all arrays in order of execution.

    Attributes:
        step: which one.
        structure: hash by which ranks are classed; with equal ones, operators correspond by position.
        seconds: (operators,) time of each; 0 for collectives, whose time belongs to states of their own.
        joules: (operators,) together the rank's compute energy per step, but for what replay found to be otherwise;
            None when that is unknown.
        replayed: (operators,) whose joules replay measured; None where no operator's were.
    """

    step: int
    structure: str
    seconds: npt.NDArray[np.float32]
    joules: npt.NDArray[np.float32] | None
    replayed: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank of one run. Figures that are unknown are None, never 0.

    Attributes:
        rank, node: which rank, on which host.
        device: the metered device; ranks with the same one share it.
        window_s: wall time accounted for, s; `states` add up to it.
        states: seconds and joules by ``phase/activity``.
        watt_seconds: seconds at each key of a profile's watts; joules = sum of seconds times watts.
        energy_j: total energy; None when unmeasured.
        residual_j: energy in no state.
        counter_j: the same total by the energy counter.
        energy_kind, energy_source: provenance of the joules, and the meter in words.
        unmeasured_s: time without power readings, s.
        unjoined_s: of the unresolved time, in which collectives ran alone on the device whose peers are not known, s.
        steps, units, unit: work done; units are tokens or samples, None when the script does not say.
        contention: share of wanted CPU time spent waiting for a core.
        collectives: calls seen.
        waits: sums of waiting by group, operation, origin, stack and culprit (`timeline`).
        host_times: why the device idled and how long the host stood in synchronisation (`records.host_times`), of the
            steps in the window; without rows where only a profiler's trace would tell.
        captured_steps: steps in the window whose kernels were captured: those that `host_times` speaks of.
        stacks: id -> ``file:line function`` lines, innermost first, of the stacks that `waits` and `host_times` name.
        marks: moment -> ns on the rank's clock.
        traced: costs of the operators of each traced step.
        monitors: by state of collectives: do the device's performance monitors agree; empty on a CPU.
        exit_code: of the rank's process, None when not known.
        notes: fallbacks taken, gaps, disagreements.
    """

    rank: int
    node: str
    device: str
    window_s: float
    states: dict[str, StateShare]
    watt_seconds: dict[str, float]
    energy_j: float | None
    residual_j: float | None = None
    counter_j: float | None = None
    energy_kind: EnergyKind
    energy_source: str
    unmeasured_s: float = 0.0
    unjoined_s: float = 0.0
    steps: int = 0
    units: float | None = None
    unit: str | None = None
    contention: float | None = None
    collectives: int = 0
    waits: pl.DataFrame = field(default_factory=pl.DataFrame)
    host_times: pl.DataFrame = field(default_factory=HOST_TIMES.empty)
    captured_steps: int = 0
    stacks: dict[int, list[str]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    traced: tuple[TracedStep, ...] = ()
    monitors: dict[str, Corroboration] = field(default_factory=dict)
    exit_code: int | None = None
    notes: tuple[str, ...] = ()


def run_joules(ranks: Iterable[RankSummary]) -> float | None:
    """Energy of one run, J: the sum over its ranks, None when one of them is unmeasured."""
    total_j = 0.0
    for rank in ranks:
        if rank.energy_j is None:
            return None
        total_j += rank.energy_j
    return total_j


def corner_joules(ranks: Iterable[RankSummary], corners: Sequence[Mapping[str, float]]) -> Floats:
    """Modelled energy of one run at each corner of a profile, J; shape (corners,)."""
    seconds: dict[str, float] = {}
    for rank in ranks:
        for key, s in rank.watt_seconds.items():
            seconds[key] = seconds.get(key, 0.0) + s
    return np.array([sum(s * watts[key] for key, s in seconds.items()) for watts in corners])
