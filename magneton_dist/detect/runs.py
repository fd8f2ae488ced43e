"""What detectors look at: the repeats of one variant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from magneton_dist.energy.statistics import mean_interval
from magneton_dist.energy.summary import RankSummary
from magneton_dist.meters.profile import Profile
from magneton_dist.records.audit import EnergyKind, Interval

CONTENDED = 0.10  # more of the wanted CPU time than this spent waiting for a core: the run was disturbed


@dataclass(frozen=True)
class VariantRuns:
    """One variant: per repeat the summaries of its ranks, by rank.

    `profile` models the watts where nobody measured, and says what an idle device would draw where somebody
    did; its figures then stand as assumptions beside the measured ones.
    """

    name: str
    repeats: list[dict[int, RankSummary]]
    profile: Profile
    started: int = 0  # ranks of each run, those that left no record among them; 0 where that is not known

    @property
    def world_size(self) -> int:
        """Ranks of each run: as many as were started, or as there must have been."""
        return max([self.started, *(rank + 1 for run in self.repeats for rank in run)])

    @property
    def ranks(self) -> list[int]:
        """Ranks that every repeat has."""
        sets = [set(r) for r in self.repeats]
        return sorted(set.intersection(*sets)) if sets else []

    @property
    def energy_kind(self) -> EnergyKind:
        """The weakest provenance of any rank's joules."""
        return weakest(s.energy_kind for r in self.repeats for s in r.values())

    @property
    def saving_kind(self) -> EnergyKind:
        """Provenance of joules above an idle device: what it would draw is measured only by `calibrate`."""
        kind = self.energy_kind
        return kind if kind == "unmeasured" or self.profile.sensor is not None else "modelled"

    def over_repeats(self, figure: Callable[[dict[int, RankSummary]], float | None]) -> Interval | None:
        """Mean of `figure` over the repeats with its interval; None when a repeat does not have it."""
        values = [figure(r) for r in self.repeats]
        known = [v for v in values if v is not None]
        return mean_interval(np.array(known)) if known and len(known) == len(values) else None

    def share_of_run(self, joules: Interval | None) -> float | None:
        """`joules` as a share of this variant's mean energy."""
        total = self.over_repeats(lambda run: total_j(run.values()))
        return joules.mean / total.mean if joules and total and total.mean > 0 else None


def weakest(kinds: Iterable[EnergyKind]) -> EnergyKind:
    """The weakest of these provenances; of none: unmeasured."""
    order: list[EnergyKind] = ["unmeasured", "modelled", "apportioned", "replayed", "measured"]
    return min(kinds, key=order.index, default="unmeasured")


def most_contended(runs: Iterable[Mapping[int, RankSummary]]) -> float:
    """Largest share of wanted CPU time that a rank of these runs spent waiting for a core; 0 when not known."""
    shares = (s.contention for run in runs for s in run.values())
    return max((share for share in shares if share is not None), default=0.0)


def total_j(ranks: Iterable[RankSummary]) -> float | None:
    """Joules of these ranks together; None when one is unmeasured."""
    energies = [r.energy_j for r in ranks]
    return None if any(e is None for e in energies) else float(sum(e for e in energies if e is not None))


def state_sum(summary: RankSummary, phase: str, activities: Iterable[str]) -> tuple[float, float | None]:
    """Seconds and joules of some activities of one phase; joules None when a part is unmeasured."""
    seconds, joules = 0.0, 0.0
    unmeasured = False
    for activity in activities:
        share = summary.states.get(f"{phase}/{activity}")
        if share is None:
            continue
        seconds += share.s
        if share.j is None:
            unmeasured = True
        else:
            joules += share.j
    return seconds, None if unmeasured else joules
