"""Everything that one run brings in, and the outcome it adds up to."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from magneton_dist.cluster.analysis import Announcement, Collected
from magneton_dist.cluster.clocks import combine
from magneton_dist.cluster.events import Place, Slot
from magneton_dist.cluster.launching import exit_codes
from magneton_dist.cluster.outcome import RunOutcome
from magneton_dist.cluster.rank_actor import Conditions
from magneton_dist.cluster.spool import Sums
from magneton_dist.cluster.states import Facts
from magneton_dist.config import Job
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun


@dataclass(frozen=True, slots=True)
class Assignment:
    """One run to make; for what the job needs see `launching.Launch`.

    Attributes:
        draft: the manifest as it is before the run; says what runs.
        discarded: a warm-up run: nothing of it is analysed unless it fails.
    """

    draft: Manifest
    discarded: bool
    job: Job
    folder: Path
    values: Mapping[str, str]
    environment: Mapping[str, str]
    cwd: Path
    capture: Mapping[str, object]
    token: str
    origin: str
    temporary: Path | None = None


@dataclass(slots=True)
class Ledger:
    """What has arrived of one run.

    Attributes:
        meters: of each slot.
        sums: latest of each rank.
        collected: what `collect` said, and what the meter saw.
        summaries: what `summarise` said.
        clocks: of each node, by its number, at start and end.
        disturbed: what spoils the figures, in words.
        apart: nodes that do not share the driver's file system.
        output: end of what the job printed, by node.
    """

    assignment: Assignment
    started_s: float = field(default_factory=time.monotonic)
    meters: dict[Slot, MeterUsed] = field(default_factory=dict)
    sums: dict[Place, Sums] = field(default_factory=dict)
    collected: dict[Place, tuple[Collected, Conditions]] = field(default_factory=dict)
    joined: Any = None
    summaries: dict[Place, Any] = field(default_factory=dict)
    clocks: dict[int, list[Clock]] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)
    apart: set[int] = field(default_factory=set)
    output: dict[int, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.started_s

    def disturb(self, what: str) -> None:
        """Note once what spoils the figures."""
        if what not in self.disturbed:
            self.disturbed.append(what)

    def spool(self, node: int) -> Path:
        """Where the tracer writes on `node`."""
        return self.assignment.folder / "spool" / str(node)

    def tables(self, rank: int) -> Path:
        """Where the tables of `rank` lie."""
        return self.assignment.folder / "ranks" / f"{rank:05d}"

    def physical(self, slot: Slot) -> str | None:
        """The device behind a slot's meter, when other slots could measure the same one."""
        meter = self.meters.get(slot)
        return f"{slot.node}/{meter.device}" if meter is not None and meter.provenance == "measured" else None

    def arrivals(self, facts: Facts) -> list[Any]:
        """What `collect` gave for the join, in the order of ranks."""
        numbers = number_ranks(facts.ranks)
        return [self.collected[place][0].arrivals for place in sorted(self.collected, key=numbers.__getitem__)]

    def clock(self, node: int) -> Clock | None:
        """Of a node, from its start and end; None when it could not be read."""
        readings = self.clocks.get(node)
        return combine(readings[0], readings[-1]) if readings else None

    def rank_clocks(self, facts: Facts) -> dict[int, Clock]:
        """Clock of each rank's node, by rank; without those that could not be read."""
        clocks = {rank: self.clock(place.node) for place, rank in number_ranks(facts.ranks).items()}
        return {rank: clock for rank, clock in clocks.items() if clock is not None}

    def rank_run(self, facts: Facts, place: Place, node: str) -> RankRun:
        """The manifest's entry of one rank."""
        announcement = facts.ranks[place]
        meter = self.meters.get(facts.shape.slot(place))
        collected, conditions = self.collected.get(place, (None, Conditions()))
        return RankRun(
            rank=number_ranks(facts.ranks)[place],
            local_rank=place.local_rank,
            node=node,
            pid=announcement.pid,
            device=announcement.device_or(meter),
            exit_code=self._exit_code(facts, place, announcement.pid),
            distributed=announcement.distributed,
            meter=meter,
            truncated=collected.truncated if collected else {},
            temperature_c=conditions.temperature_c,
            power_cap_w=conditions.power_cap_w,
        )

    def outcome(self, facts: Facts, names: Mapping[int, str]) -> RunOutcome:
        """What the run came to, with `facts` as they were when it was done, and the `names` of the nodes."""
        told, numbers = self.assignment, number_ranks(facts.ranks)
        claimed = [announcement.world_size for announcement in facts.ranks.values()]
        world_size = max([told.draft.world_size, len(numbers), *claimed])
        missing = [
            *facts.missing,
            *absent(facts, world_size),
            *failures({numbers[place]: self._exit_code(facts, place, said.pid) for place, said in facts.ranks.items()}),
            *self._reported(numbers),
            *self._sent(facts, numbers),
        ]
        if facts.stopped:
            missing.append(f"the rest of the run: {facts.stopped}")
        places = sorted(numbers, key=numbers.__getitem__)
        manifest = msgspec.structs.replace(
            told.draft,
            world_size=world_size,
            exit_code=facts.exit_code,
            ranks=[self.rank_run(facts, place, names[place.node]) for place in places],
            clocks={names[node]: combine(readings[0], readings[-1]) for node, readings in self.clocks.items()},
            disturbed=self._disturbed(),
            missing=missing,
            finished=True,
            stopped=any(collected.stopped for collected, _ in self.collected.values()),
        )
        return RunOutcome(
            told.draft.variant, told.draft.repeat, told.discarded, told.folder, manifest,
            # by rank, not as they came: what is summed over ranks is then the same whenever it is told again
            summaries={numbers[place]: self.summaries[place] for place in places if place in self.summaries},
            sums={numbers[place]: self.sums[place] for place in places if place in self.sums},
            exit_code=facts.exit_code,
            missing=tuple(missing),
            output="\n".join(self.output[node] for node in sorted(self.output)),
            stopped=facts.stopped,
            seconds=self.seconds,
        )  # fmt: skip

    def _exit_code(self, facts: Facts, place: Place, pid: int) -> int | None:
        if facts.exits.get(place.node) == 0:
            return 0
        return exit_codes(self.output.get(place.node, "")).get(pid)

    def _reported(self, numbers: Mapping[Place, int]) -> list[str]:
        """What the tracers and meters said was missing."""
        return [
            f"rank {numbers[place]}: {what}"
            for place, (collected, conditions) in sorted(self.collected.items())
            for what in (*collected.missing, *conditions.faults)
        ]

    def _sent(self, facts: Facts, numbers: Mapping[Place, int]) -> list[str]:
        """Of ranks whose tables are lost with their node: the sums they had sent."""
        return [
            f"tables of rank {numbers[place]}: lost with its node after {sums.steps} steps and "
            f"{sums.collectives} collectives"
            for place, sums in sorted(self.sums.items())
            if place.node in facts.gone and place not in self.collected
        ]

    def _disturbed(self) -> list[str]:
        seen = [what for _, conditions in self.collected.values() for what in conditions.disturbed]
        return list(dict.fromkeys([*self.disturbed, *seen]))


def number_ranks(announced: Mapping[Place, Announcement]) -> dict[Place, int]:
    """The global rank of each place.

    Ranks of one job number themselves. Processes that never met (no process group, or several jobs in one
    command) may claim the same number; then all are numbered in the order of their places.
    """
    claimed = {place: announcement.rank for place, announcement in announced.items()}
    if len(set(claimed.values())) == len(claimed):
        return claimed
    return {place: number for number, place in enumerate(sorted(announced))}


_SIGNALS = {known.value: known.name for known in signal.Signals}


def failures(exit_codes: Mapping[int, int | None]) -> list[str]:
    """What became of each rank that failed, in words; `exit_codes` by rank, negative: the signal.

    Once a rank has failed, torchrun ends the others by SIGTERM: they are named only if nothing else failed.
    """
    failed = {rank: code for rank, code in sorted(exit_codes.items()) if code}
    first = {rank: code for rank, code in failed.items() if code != -signal.SIGTERM}
    return [f"rank {rank}: {_ending(code)}" for rank, code in (first or failed).items()]


def _ending(exit_code: int) -> str:
    if exit_code > 0:
        return f"it ended with exit code {exit_code}"
    return f"it was killed by {_SIGNALS.get(-exit_code, f'signal {-exit_code}')}"


def absent(facts: Facts, world_size: int) -> list[str]:
    """Which ranks never announced themselves, in words."""
    if not facts.ranks:
        return ["every rank: no process of the job created a process group or took an optimizer step"]
    numbers = set(number_ranks(facts.ranks).values())
    return [f"rank {rank}: it never announced itself" for rank in range(world_size) if rank not in numbers]
