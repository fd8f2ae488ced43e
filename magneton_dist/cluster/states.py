"""Where a run stands, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from magneton_dist.cluster.analysis import Announcement
from magneton_dist.cluster.events import Actor, Agent, Place, Slot
from magneton_dist.errors import MagnetonError


@dataclass(frozen=True, slots=True)
class Shape:
    """How many nodes, and how many rank actors on each."""

    nodes: int
    per_node: int

    @property
    def agents(self) -> frozenset[Agent]:
        """All node agents."""
        return frozenset(Agent(node) for node in range(self.nodes))

    @property
    def slots(self) -> frozenset[Slot]:
        """All rank actors."""
        return frozenset(Slot(node, index) for node in range(self.nodes) for index in range(self.per_node))

    def slot(self, place: Place) -> Slot:
        """The actor that serves a rank; a job with more ranks than expected shares actors."""
        return Slot(place.node, place.local_rank % self.per_node)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a run, in every state.

    Attributes:
        shape: nodes and slots.
        analysed: whether its records are wanted; a discarded run's are not, unless it fails.
        timeout_s: the job's time limit.
        ranks: the latest announcement of each rank.
        owners: physical device -> the slot that samples it.
        exits: exit code of each node that has ended; None where the code went with its agent.
        replaced: how often an actor was replaced.
        pending: replacements that do not answer yet.
        gone: nodes that are lost.
        missing: what did not arrive, in words.
        stopped: why the run was ended before its time, empty when it was not.
        now_s: time of the latest tick, since the run began.
    """

    shape: Shape
    analysed: bool = True
    timeout_s: float | None = None
    ranks: Mapping[Place, Announcement] = field(default_factory=dict)
    owners: Mapping[str, Slot] = field(default_factory=dict)
    exits: Mapping[int, int | None] = field(default_factory=dict)
    replaced: Mapping[Actor, int] = field(default_factory=dict)
    pending: frozenset[Actor] = frozenset()
    gone: frozenset[int] = frozenset()
    missing: tuple[str, ...] = ()
    stopped: str = ""
    now_s: float = 0.0

    @property
    def exit_code(self) -> int | None:
        """Of the whole job: the first node's that failed, None when a node took its code with it."""
        codes = [self.exits.get(node) for node in range(self.shape.nodes)]
        return next((code for code in codes if code), None if None in codes else 0)

    @property
    def running(self) -> list[int]:
        """Nodes whose part of the job has not ended."""
        return [node for node in range(self.shape.nodes) if node not in self.exits]

    def places(self, slot: Slot) -> list[Place]:
        """Ranks that a slot serves."""
        return sorted(place for place in self.ranks if self.shape.slot(place) == slot)

    def lack(self, what: str) -> Facts:
        """With one more thing that is missing."""
        return self if what in self.missing else replace(self, missing=(*self.missing, what))


@dataclass(frozen=True, slots=True)
class Placing:
    """Actors that are not there yet."""

    facts: Facts
    waiting: frozenset[Actor]


@dataclass(frozen=True, slots=True)
class Starting:
    """Meters that do not run yet, then nodes that have not started the job yet."""

    facts: Facts
    slots: frozenset[Slot]
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Running:
    """The job runs since `began_s`; what is left of it is ended at `end_s`, no longer waited for at `give_up_s`."""

    facts: Facts
    began_s: float = 0.0
    end_s: float | None = None
    give_up_s: float | None = None


@dataclass(frozen=True, slots=True)
class Draining:
    """Ranks whose tables are not written yet."""

    facts: Facts
    waiting: frozenset[Place]
    collected: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Aggregating:
    """The ranks' arrivals are being joined."""

    facts: Facts
    collected: frozenset[Place]


@dataclass(frozen=True, slots=True)
class Diagnosing:
    """Ranks that have no figures yet."""

    facts: Facts
    waiting: frozenset[Place]


@dataclass(frozen=True, slots=True)
class Done:
    """The run is over, with everything that arrived."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Failed:
    """The run could not be made."""

    facts: Facts
    error: MagnetonError


State: TypeAlias = Placing | Starting | Running | Draining | Aggregating | Diagnosing | Done | Failed
