"""A rank's figures: its states, what they cost, and whom it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from magneton_dist.energy.attribution import attribute
from magneton_dist.energy.carried import carried_over
from magneton_dist.energy.corroboration import claims, corroborate
from magneton_dist.energy.deconvolution import told_apart
from magneton_dist.energy.model import modelled_power, watt_seconds
from magneton_dist.energy.summary import RankSummary
from magneton_dist.energy.traced import replay_residual, traced_step_costs
from magneton_dist.meters.profile import Profile, load_profile
from magneton_dist.meters.sensor import Sensor
from magneton_dist.records.audit import Corroboration, EnergyKind, StateShare
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.records.manifest import RankRun
from magneton_dist.timeline.carry import carry_shares
from magneton_dist.timeline.gpu_states import CAPTURE_MARK
from magneton_dist.timeline.intervals import Ints, intersect, intervals, length
from magneton_dist.timeline.loading import loading
from magneton_dist.timeline.states import CPU, rank_states
from magneton_dist.timeline.sums import waits
from magneton_dist.timeline.window import Window

WEIGHTS = "h200"  # profile whose watts by class of operator weigh a measured rank's operators against each other


@dataclass(frozen=True)
class Supply:
    """Where a rank's watts come from.

    Attributes:
        profile: to model them from its states; None when they were measured or nobody measured.
        power: readings of the device that the rank ran on; empty when there are none.
        counters: readings of its energy counter.
        share: part of the device's energy that is this rank's; below 1 where ranks share the device.
        sensor: how the meter blurs the states, where that was measured.
        calibrated: device and meter with which it was measured, in words.
    """

    profile: Profile | None
    power: pl.DataFrame
    counters: pl.DataFrame | None = None
    share: float = 1.0
    sensor: Sensor | None = None
    calibrated: str = ""


@dataclass(frozen=True)
class RankAccount:
    """A rank's summary with the tables behind it: states (`timeline.states.STATES`) and power (`POWER`)."""

    summary: RankSummary
    states: pl.DataFrame
    power: pl.DataFrame


def account(
    rank: RankRun,
    tables: Mapping[str, pl.DataFrame],
    arrivals: pl.DataFrame,
    window: Window,
    supply: Supply,
    replayed: pl.DataFrame | None = None,
    host_times: pl.DataFrame | None = None,
    monitors: pl.DataFrame | None = None,
) -> RankAccount:
    """Account for one rank over its window.

    Args:
        rank: from the manifest.
        tables: the rank's record.
        arrivals: its rows of `timeline.arrivals.Joined`.
        window: the audited window on the rank's own clock.
        supply: its watts.
        replayed: what replay found for the run, `energy.replay.results.REPLAYED`.
        host_times: why its device idled, `records.host_times.HOST_TIMES`.
        monitors: of its device's parts, `records.monitors.MONITORS`; None where nobody looked.
    """
    host_times = HOST_TIMES.empty() if host_times is None else host_times
    timeline = rank_states(tables, arrivals, window, rank.device)
    power = supply.power
    if supply.profile is not None:
        power = modelled_power(timeline.states, supply.profile.nominal(), rank.device)
    energy = attribute(
        power, timeline.states, supply.counters, window_ns=(window.start_ns, window.end_ns), share=supply.share
    )
    if supply.sensor is not None:
        energy = told_apart(energy, power, timeline.states, supply.sensor, supply.share)
    weights = supply.profile or load_profile(WEIGHTS)
    open_somewhere = (timeline.states["activity"] == "unresolved").any()
    # a profiler's trace has no steps beside those that it captured
    others = (tables["steps"]["kind"] != "kernels").any()
    if rank.device != CPU and open_somewhere and others and (tables["marks"]["name"] == CAPTURE_MARK).any():
        carried = carry_shares(tables, arrivals, window, rank.device)
        energy = carried_over(energy, carried, weights.nominal())
    calls = waits(tables["collectives"], arrivals, timeline.states, window)
    steps = tables["steps"].filter(pl.col("end_ns").is_between(window.start_ns, window.end_ns, closed="right"))
    host_times = pl.concat([host_times, loading(tables["marks"], timeline.states, tables["steps"])])
    host_times = host_times.filter(pl.col("step").is_in(steps["step"].implode()))
    units, unit = _units(steps)
    # where nobody could measure, the meter's own words say so
    notes = [] if rank.meter is not None and rank.meter.provenance == "unmeasured" else list(energy.notes)
    if rank.meter is not None and rank.meter.provenance == "modelled" and rank.meter.reason.startswith("auto: "):
        notes.append(f"energy.meter {rank.meter.reason}")  # nobody asked for a model
    if supply.sensor is not None and rank.meter is not None and rank.meter.source not in supply.calibrated:
        notes.append(f"energy.profile was calibrated with {supply.calibrated}; this meter is {rank.meter.source}")
    if not rank.distributed:
        notes.append("never initialised torch.distributed: audited by itself, without collectives")
    notes += [f"{where}: {message}" for where, message in tables["faults"].iter_rows()]
    compute_j = _compute_j_per_step(energy.states, steps.height)
    traced = traced_step_costs(tables, compute_j, weights, replayed)
    residual = replay_residual(traced, compute_j)
    notes += [residual] if residual else []
    summary = RankSummary(
        rank=rank.rank,
        node=rank.node,
        device=rank.meter.device if rank.meter and rank.meter.device else rank.device,
        window_s=window.seconds,
        states=energy.states,
        watt_seconds=watt_seconds(timeline.states),
        energy_j=energy.total_j,
        residual_j=energy.residual_j,
        counter_j=energy.counter_j,
        energy_kind=_kind(rank, supply),
        energy_source=_source(rank, supply),
        unmeasured_s=energy.unmeasured_s,
        unjoined_s=_unjoined_s(tables["activities"], timeline.states),
        steps=steps.height,
        units=units,
        unit=unit,
        contention=timeline.contention,
        collectives=tables["collectives"].height + int(tables["collective_sums"]["count"].sum()),
        waits=calls,
        host_times=host_times,
        captured_steps=int((steps["kind"] == "kernels").sum()),
        stacks=_stacks(tables["stacks"], pl.concat([calls["stack_id"], host_times["stack_id"]])),
        traced=traced,
        monitors=_corroborated(rank, timeline.states, supply, monitors),
        exit_code=rank.exit_code,
        notes=tuple(notes),
    )
    return RankAccount(summary, timeline.states, power)


def _source(rank: RankRun, supply: Supply) -> str:
    """Where its joules come from, in words; the watts may be others than those that its meter stood for."""
    if supply.profile is not None and rank.meter and rank.meter.name != f"modelled:{supply.profile.name}":
        return supply.profile.source
    return rank.meter.source if rank.meter else "no meter"


def _corroborated(
    rank: RankRun, states: pl.DataFrame, supply: Supply, monitors: pl.DataFrame | None
) -> dict[str, Corroboration]:
    """What the device's performance monitors say of its waits and transfers, or why they say nothing."""
    if rank.device == CPU or rank.meter is None or not rank.meter.monitors:  # nor do traces, and older records
        return {}
    if supply.share != 1.0:
        why = "ranks share the device: its monitors are of all of them"
    elif monitors is None or monitors.is_empty():
        why = f"performance monitors: {rank.meter.monitors}"
    else:
        return corroborate(states, monitors)
    return dict.fromkeys(claims(states), Corroboration("not available", why))


def _unjoined_s(activities: pl.DataFrame, states: pl.DataFrame) -> float:
    """Seconds of unresolved time in which a collective was on the device."""
    open_ = _spans(states.filter(pl.col("activity") == "unresolved"))
    return length(intersect(open_, _spans(activities.filter(pl.col("kind") == "collective")))) / 1e9


def _spans(rows: pl.DataFrame) -> Ints:
    return intervals(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())


def _compute_j_per_step(states: Mapping[str, StateShare], steps: int) -> float | None:
    """Joules of the working states in which operators ran, per step; None when unknown."""
    shares = [states[key] for key in ("working/compute", "working/overlap") if key in states]
    joules = [share.j for share in shares if share.j is not None]
    return sum(joules) / steps if joules and len(joules) == len(shares) and steps else None


def _kind(rank: RankRun, supply: Supply) -> EnergyKind:
    if supply.profile is not None:
        return "modelled"
    if not supply.power.height:
        return "unmeasured"
    return "measured" if supply.share == 1.0 else "apportioned"


def _units(steps: pl.DataFrame) -> tuple[float | None, str | None]:
    """Units of work of these steps; None when a step does not say."""
    if not steps.height or steps["units"].null_count():
        return None, None
    return float(steps["units"].sum()), steps["unit"][0]


def _stacks(stacks: pl.DataFrame, wanted: pl.Series) -> dict[int, list[str]]:
    named = stacks.filter(pl.col("stack_id").is_in(wanted.drop_nulls().unique().implode()))
    return {
        int(stack_id): [f"{f['file']}:{f['line']} {f['function']}" for f in frames]
        for stack_id, frames in named.iter_rows()
    }
