"""Why a rank keeps others waiting, or has to wait for their end: from what its records say it did meanwhile.

Nothing is flipped here, so a cause is consistent with the records, not proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from magneton_dist.diagnosis.operators import Diagnosis
from magneton_dist.records.audit import Audit, Cause, Finding, RankResult

TELLING = 0.5  # of what a rank takes longer per step must be of one kind
LEAST_RATIO = 1.05  # of steps, units or times, to be called uneven
Kind = Literal["data", "loader", "stall", "busy host", "slow rank", "late launch"]


@dataclass(frozen=True)
class Work:
    """What a rank did in a step, seconds: computing, ready but without a core, idle with nothing in flight.

    `loader_s` is the part of the idle time in which its host fetched data.
    """

    compute_s: float
    delay_s: float
    idle_s: float
    loader_s: float
    units: float | None

    @classmethod
    def of(cls, rank: RankResult) -> Work:
        """Mean over its steps."""
        steps = max(1, rank.steps)
        wanted_s = (_state_s(rank, "compute") + _state_s(rank, "overlap")) / steps
        delay_s = wanted_s * (rank.contention or 0.0)
        units = None if rank.units is None else rank.units / steps
        loader_s = rank.idle_s.get("loader", 0.0) / steps
        return cls(wanted_s - delay_s, delay_s, _state_s(rank, "idle") / steps, loader_s, units)

    def __str__(self) -> str:
        parts = [
            ("computing", self.compute_s), ("fetching data", self.loader_s),
            ("otherwise idle" if self.loader_s >= 5e-5 else "idle", max(0.0, self.idle_s - self.loader_s)),
            ("waiting for a core", self.delay_s),
        ]  # fmt: skip
        units = "" if self.units is None else f", {self.units:.4g} units"
        shown = [(name, s) for name, s in parts if s >= 5e-5 or name == "computing"]
        return ", ".join(f"{s:.3g} s {name}" if s >= 1 else f"{1e3 * s:.3g} ms {name}" for name, s in shown) + units


def cause_of_shadow(finding: Finding, audit: Audit) -> Diagnosis:
    """Why this rank had finished before the others."""
    ranks = {rank.rank: rank for rank in audit.variants[finding.variant].ranks}
    mine = ranks.get(finding.ranks[0]) if finding.ranks else None
    longest = max(ranks.values(), key=lambda rank: rank.steps, default=None)
    if mine is None or longest is None or longest.steps <= mine.steps * LEAST_RATIO:
        return Diagnosis(lines=["records: the ranks made as many steps; this one was through with them earlier"])
    values = {f"rank {mine.rank}": f"{mine.steps} steps", f"rank {longest.rank}": f"{longest.steps} steps"}
    line = (
        f"records: rank {mine.rank} had {mine.steps} measured steps, rank {longest.rank} {longest.steps}: their data "
        "is split unevenly"
    )
    return Diagnosis("consistent", Cause("data", "uneven numbers of steps", values, agreed=["records"]), "", [line])


def cause_of_straggling(finding: Finding, audit: Audit) -> Diagnosis:
    """Why this rank arrives late: what it does in a step that its peers do not."""
    if len(finding.ranks) > 1:
        return Diagnosis(lines=["records: several ranks come late together: what each of them did is not compared"])
    ranks = {rank.rank: rank for rank in audit.variants[finding.variant].ranks}
    culprit = ranks.pop(finding.ranks[0], None) if finding.ranks else None
    if culprit is None or not ranks:
        return Diagnosis(lines=["records: nothing to compare the late rank with"])
    mine, peers = Work.of(culprit), _typical([Work.of(rank) for rank in ranks.values()])
    # computing more on a busy host also waits more for a core: that delay comes of the computing
    per_second = peers.delay_s / peers.compute_s if peers.compute_s > 0 else 0.0
    more = {
        "compute": (mine.compute_s - peers.compute_s) * (1 + per_second),
        "delay": mine.delay_s - mine.compute_s * per_second,
        "idle": mine.idle_s - peers.idle_s,
    }
    whole = sum(max(0.0, s) for s in more.values())
    most = max(more, key=more.__getitem__)
    values = {f"rank {culprit.rank}": str(mine), "its peers": str(peers)}
    told = f"records: in a step, rank {culprit.rank}: {mine}; its peers: {peers}"
    if whole <= 0 or more[most] < TELLING * whole:
        return Diagnosis(lines=[told, "no cause: nothing stands out in what the late rank does"])
    kind = _kind(most, mine, peers, on_gpu=culprit.device != "cpu")
    name = {
        "data": f"rank {culprit.rank} has more data in a step",
        "loader": f"the DataLoader of rank {culprit.rank} is slower",
        "stall": f"the host of rank {culprit.rank} stalls between operators",
        "late launch": f"the host of rank {culprit.rank} launches late",
        "busy host": f"rank {culprit.rank} waits for a core that others use",
        "slow rank": f"rank {culprit.rank} computes the same more slowly",
    }[kind]
    return Diagnosis("consistent", Cause(kind, name, values, agreed=["records"]), _fix(kind, culprit), [told])


def _kind(most: str, mine: Work, peers: Work, *, on_gpu: bool) -> Kind:
    if most == "idle":
        if mine.loader_s - peers.loader_s >= TELLING * (mine.idle_s - peers.idle_s):
            return "loader"
        return "late launch" if on_gpu else "stall"
    if most == "delay":
        return "busy host"
    if mine.units is not None and peers.units and mine.units >= LEAST_RATIO * peers.units:
        # the excess of data explains at least half of the excess of time
        explained = mine.units / peers.units - 1
        if explained >= TELLING * (mine.compute_s / max(peers.compute_s, 1e-12) - 1):
            return "data"
    return "slow rank"


def _fix(kind: Kind, rank: RankResult) -> str:
    where = f"rank {rank.rank} ({rank.device} on {rank.node})"
    return {
        "data": f"Give {where} as many tokens or samples per step as its peers: bucket or pad by length on all ranks.",
        "loader": f"Let the loader of {where} work ahead: DataLoader(num_workers=..., prefetch_factor=..., "
        "persistent_workers=True); or see why its data come slower: files, network, larger samples.",
        "stall": f"See what the main thread of {where} waits for between operators: its data loader, files, locks, "
        "sleeps. More loader workers or prefetching hide it.",
        "late launch": f"See what Python does between launches on {where}: logging, synchronisation, checks on one "
        "rank only.",
        "busy host": f"Keep other processes off the cores of {where}, or pin its threads: OMP_NUM_THREADS, taskset, "
        "cgroups.",
        "slow rank": f"Compare clocks, temperature, power cap and threads of {where} with its peers', and what only "
        "this rank computes.",
    }[kind]


def _typical(works: Sequence[Work]) -> Work:
    units = [work.units for work in works if work.units is not None]
    return Work(
        median(work.compute_s for work in works), median(work.delay_s for work in works),
        median(work.idle_s for work in works), median(work.loader_s for work in works),
        median(units) if len(units) == len(works) else None,
    )  # fmt: skip


def _state_s(rank: RankResult, activity: str) -> float:
    share = rank.states.get(f"working/{activity}")
    return 0.0 if share is None else share.s
