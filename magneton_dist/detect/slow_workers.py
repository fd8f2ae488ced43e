"""What slow workers, stages and operations of a pipeline-parallel job cost it, from its timeline of operations.

Where no worker is slower than the others, a computation lasts as long as its mean, a communication as its median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from magneton_dist.detect.counterfactuals import FLOOR_SHARE, mean_watts
from magneton_dist.detect.straggler import FLOOR_SHARE as WAIT_FLOOR
from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import RecordError
from magneton_dist.meters.profile import Profile
from magneton_dist.records.audit import Counterfactual, Finding, Interval, Place
from magneton_dist.timeline.replay import Floats, Replay

SHOWN_STEPS = 4  # that say which worker or operation is slow
EXPLAINED = 0.5  # of the excess: from there on the authors of the analysis call workers or a stage its cause
Kind = Literal["ranks", "replica", "stage", "operation"]

_KINDS: dict[str, tuple[Kind, str]] = {
    "dp": ("replica", "data-parallel rank"), "stage": ("stage", "pipeline stage"), "op": ("operation", "operation"),
}  # fmt: skip
_NO_DEVICE = (
    "joules that would be saved are unmeasured: the timeline names no device (--profile models them as another's)"
)
_WORKERS_FIX = (
    "Find out why {} takes longer for the same operations: a slower or throttled device, a busy host, more data. "
    "Replace it, or give it less work."
)
_STAGE_FIX = (
    "Give the last pipeline stage, which also computes the loss, fewer layers. Where its lengths of sequences differ, "
    "put sequences together so that micro-batches cost the same."
)


@dataclass(frozen=True)
class SlowWorkers:
    """What comes of a timeline: counterfactuals, findings, and the same in words."""

    counterfactuals: list[Counterfactual]
    findings: list[Finding]
    notes: list[str]


def slow_workers(
    variant: str, operations: pl.DataFrame, ranks: Mapping[int, RankSummary], profile: Profile
) -> SlowWorkers:
    """What the steps would take were workers as fast as the others, and whom the others wait for.

    Args:
        variant: whose timeline it is.
        operations: schema `records.operations.OPERATIONS`.
        ranks: summaries of the workers, the one of stage s and data-parallel rank d being s times their number plus d.
        profile: the watts of devices that wait or idle.
    """
    replay = Replay(operations)
    some = range(0, replay.steps, max(1, replay.steps // SHOWN_STEPS))
    by = f"by {len(some)} of {replay.steps} steps"
    try:
        notes = [f"steps take {replay.slowdown():.3f} times what they would were no worker slower than the mean"]
    except RecordError as error:
        return SlowWorkers([], [], [f"what would be saved is not known: {error.what}"])
    for column, (_, what) in _KINDS.items():
        alone = {v: replay.slowdown(pl.col(column) == v, some) for v in operations[column].unique().sort()}
        worst = max(alone, key=lambda v: alone[v])
        notes.append(f"slow {what} {worst} alone makes them take {alone[worst]:.3f} times that ({by})")
    workers = replay.slowest_workers(steps=some)
    by_stage, by_worker = replay.explained(replay.last_stage()), replay.explained(replay.of_workers(workers))
    for what, share in (("the last pipeline stage", by_stage), ("the slowest 3 % of the workers", by_worker)):
        notes.append(f"{what} explains {round(100 * share)} % of what they take more")
    took_s = float(replay.step_seconds(replay.durations_s, some).mean()) * replay.steps
    watts = _Watts.of(list(ranks.values()))
    found = _saved(variant, replay, some, took_s, watts)
    if found:
        notes.append(
            f"what would be saved is of the {replay.steps} steps run again, {took_s:.4g} s together ({by}); "
            "time between steps is not among them"
        )
        if watts is None:
            notes.append(_NO_DEVICE)
    named = _culprits(replay, workers, by_worker, by_stage)
    findings = [] if named is None else _finding(variant, replay, named, ranks, profile, measured=watts is not None)
    return SlowWorkers(found, findings, notes)


@dataclass(frozen=True)
class _Watts:
    """What a device draws while it computes, communicates and idles, W."""

    computing: float
    communicating: float
    idle: float

    @classmethod
    def of(cls, ranks: Sequence[RankSummary]) -> _Watts | None:
        """Means over the ranks; None where a device's are not known."""
        means = [
            mean_watts([s for r in ranks for key, s in r.states.items() if key.partition("/")[2] in of_state])
            for of_state in (("compute", "overlap"), ("transfer", "wait"), ("idle",))
        ]
        known = [watts for watts in means if watts is not None]
        return cls(*known) if len(known) == len(means) else None


def _joules(replay: Replay, durations_s: Floats, steps: Sequence[int], workers: int, watts: _Watts) -> float:
    """What all workers draw in these steps with these durations."""
    computing, communicating = replay.seconds_in(durations_s, steps)
    idle = workers * float(replay.step_seconds(durations_s, steps).sum()) - computing - communicating
    return computing * watts.computing + communicating * watts.communicating + max(0.0, idle) * watts.idle


def _saved(
    variant: str, replay: Replay, some: Sequence[int], took_s: float, watts: _Watts | None
) -> list[Counterfactual]:
    """What the steps would take were a rank, a stage or an operation as fast as the mean, by some of them."""
    tried: list[tuple[str, Kind, pl.Expr]] = [("all workers alike", "ranks", pl.col("step").is_not_null())]
    for column, (kind, what) in _KINDS.items():
        tried += [(f"{what} {v}", kind, pl.col(column) == v) for v in replay.operations[column].unique().sort()]
    took = float(replay.step_seconds(replay.durations_s, some).sum())
    workers = replay.operations.select("dp", "stage").n_unique()
    drew = None if watts is None else _joules(replay, replay.durations_s, some, workers, watts)
    found = []
    for what, kind, rows in tried:
        durations = replay.without(rows)
        share = 1 - float(replay.step_seconds(durations, some).sum()) / took
        if share < FLOOR_SHARE:
            continue
        joules = None
        if watts is not None and drew is not None:
            joules = (drew - _joules(replay, durations, some, workers, watts)) * replay.steps / len(some)
        found.append(Counterfactual(
            what, kind, variant, took_s * (1 - share), took_s * share, share, joules,
            "unmeasured" if joules is None else "modelled",
        ))  # fmt: skip
    return sorted(found, key=lambda c: (c.kind != "ranks", -round(c.saved_s, 9), c.what))


@dataclass(frozen=True)
class _Named:
    """Those who make the others wait."""

    workers: list[tuple[int, int]]  # data-parallel rank and stage
    what: str
    explained: float
    fix: str


def _culprits(
    replay: Replay, slowest: list[tuple[int, int]], by_worker: float, by_stage: float
) -> _Named | None:
    """The slowest workers or the last stage, where they explain most of what the steps take more."""
    if by_worker >= EXPLAINED:
        what = " and ".join(f"data-parallel rank {dp} of stage {stage}" for dp, stage in slowest)
        return _Named(slowest, what, by_worker, _WORKERS_FIX.format(what))
    last = int(replay.operations.select(pl.col("stage").max()).item())
    if by_stage >= EXPLAINED and last > 0:
        workers = sorted(replay.operations.filter(pl.col("stage") == last).select("dp", "stage").unique().rows())
        return _Named(workers, "the last pipeline stage", by_stage, _STAGE_FIX)
    return None


def _finding(
    variant: str, replay: Replay, named: _Named, ranks: Mapping[int, RankSummary], profile: Profile, *, measured: bool
) -> list[Finding]:
    """`straggler-wait`: what the others wait less were these as fast as the mean; empty where that is little."""
    took = replay.step_seconds(replay.durations_s)
    excess = took - replay.step_seconds(replay.without(replay.of_workers(named.workers)))
    replicas = max(dp for dp, _ in replay.operations.select("dp", "stage").unique().rows()) + 1
    culprits = sorted(stage * replicas + dp for dp, stage in named.workers)
    waiting = sorted(set(ranks) - set(culprits))
    seconds = float(excess.sum()) * len(waiting)
    share = seconds / sum(s.window_s for s in ranks.values())
    waited_s = sum(ranks[rank].window_s for rank in waiting)
    if not waiting or share < WAIT_FLOOR:
        return []
    recurring = float(np.mean(excess > EXPLAINED * (took - replay.step_seconds(replay.ideal_s))))
    watts = profile.nominal()
    joules = Interval(seconds * (watts["wait"] - watts["context_idle"])) if measured else None
    steps = replay.operations["step"]
    who = f"rank {waiting[0]}" if len(waiting) == 1 else f"{len(waiting)} ranks"
    return [Finding(
        kind="straggler-wait",
        title=f"{who} waited {seconds / waited_s:.0%} of their time for {named.what}",
        variant=variant,
        joules=joules,
        energy_kind="unmeasured" if joules is None else "modelled",
        share=None,
        seconds=seconds,
        ranks=culprits,
        where=Place(steps=(int(steps.to_numpy().min()), int(steps.to_numpy().max())), what="operations of its steps"),
        evidence={
            "waiting_ranks": waiting,
            "share_of_rank_seconds": share,
            "share_of_excess_explained": named.explained,
            "steps_that_it_slows_most": recurring,
            "how": "the steps run again with its operations as long as their mean; what ends earlier was waiting",
            "joules_are": (
                "of devices that spin in a collective while they wait; the timeline does not say what they did"
                if measured else "unmeasured: the timeline names no device (--profile models it as another's)"
            ),
        },
        fix=named.fix,
        confidence=min(1.0, named.explained),
    )]  # fmt: skip
