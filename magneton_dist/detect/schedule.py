"""`schedule`: the same operators at the same cost, but the devices of one variant wait, transfer or idle more.

Where regions agree, the difference lies in when things ran, not in what ran: collectives that overlap less, ranks
that arrive later, a host that launches later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton_dist.detect.regions.comparing import RegionComparison
from magneton_dist.detect.runs import VariantRuns, state_sum, total_j
from magneton_dist.energy.statistics import mean_interval
from magneton_dist.energy.summary import RankSummary
from magneton_dist.matching.arrays import Floats
from magneton_dist.records.audit import Finding, Place

FLOOR_SHARE = 0.02  # of the run's joules
_STATES = {
    "wait": (
        "waiting in collectives for peers",
        "Compare the ranks' steps: who arrives late in {hungry} and not in {cheap} (bucket sizes, uneven work, "
        "a busy host)?",
    ),
    "transfer": (
        "in collectives that nothing overlaps",
        "Let collectives overlap with compute as in {cheap}: bucket sizes, prefetching, the order of gradients.",
    ),
    "idle": (
        "with an idle device",
        "Find what the host does meanwhile in {hungry}: data loading, synchronisation, Python between launches.",
    ),
}


def pair(a: VariantRuns, b: VariantRuns, regions: RegionComparison, known: Sequence[Finding]) -> list[Finding]:
    """Findings on two variants whose regions agree.

    Args:
        a, b: the variants, repeat i of one pairs with repeat i of the other.
        regions: of comparing them.
        known: findings on either variant alone; waits that they explain are not told again.
    """
    if not regions.agree or len(a.repeats) < 2:
        return []
    found = (_of_state(a, b, state, known) for state in _STATES)
    return [finding for finding in found if finding is not None]


def _of_state(a: VariantRuns, b: VariantRuns, state: str, known: Sequence[Finding]) -> Finding | None:
    one, other = _per_step(a, state), _per_step(b, state)
    if one is None or other is None:
        return None
    hungry, cheap = (b, a) if other.seconds.mean() > one.seconds.mean() else (a, b)
    more, less = (other, one) if hungry is b else (one, other)
    if state == "wait" and any(f.kind == "straggler-wait" and f.variant == hungry.name for f in known):
        return None
    steps = float(np.mean([_steps(run) for run in hungry.repeats]))
    seconds = mean_interval((more.seconds - less.seconds) * steps)
    joules = mean_interval((more.joules - less.joules) * steps)
    share = hungry.share_of_run(joules)
    if seconds.ci95 is None or seconds.ci95[0] <= 0 or share is None or share < FLOOR_SHARE:
        return None
    what, fix = _STATES[state]
    return Finding(
        kind="schedule",
        title=f"the same operators, but {hungry.name} spends {seconds.mean:.2f} s more {what} than {cheap.name}",
        variant=hungry.name,
        joules=joules,
        energy_kind=hungry.energy_kind,
        share=share,
        seconds=seconds.mean,
        ranks=hungry.ranks,
        where=Place(what=f"working/{state}"),
        evidence={f"{x.name}_per_step_s": float(y.seconds.mean()) for x, y in ((a, one), (b, other))},
        fix=fix.format(hungry=hungry.name, cheap=cheap.name),
    )


@dataclass(frozen=True)
class _PerStep:
    """(repeats,) of all ranks together in one state."""

    seconds: Floats
    joules: Floats


def _per_step(runs: VariantRuns, state: str) -> _PerStep | None:
    """None where joules of this state or steps are not known."""
    seconds, joules = [], []
    for run in runs.repeats:
        steps = _steps(run)
        if not steps or total_j(run.values()) is None:
            return None
        sums = [state_sum(summary, "working", [state]) for summary in run.values()]
        known = [j for _, j in sums if j is not None]
        if len(known) < len(sums):
            return None
        seconds.append(sum(s for s, _ in sums) / steps)
        joules.append(sum(known) / steps)
    return _PerStep(np.array(seconds), np.array(joules))


def _steps(run: dict[int, RankSummary]) -> float:
    return float(np.mean([summary.steps for summary in run.values()]))
