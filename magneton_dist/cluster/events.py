"""What can happen in a run (events), what the coordinator can do (decisions), and whom both speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from magneton_dist.cluster.analysis import Announcement
from magneton_dist.errors import MagnetonError


@dataclass(frozen=True, slots=True, order=True)
class Agent:
    """The node agent of one node."""

    node: int

    def __str__(self) -> str:
        return f"the agent of node {self.node}"


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One rank actor: the `index`-th of its node."""

    node: int
    index: int

    def __str__(self) -> str:
        return f"the actor of rank slot {self.index} on node {self.node}"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One rank as its node knows it."""

    node: int
    local_rank: int


Actor: TypeAlias = Agent | Slot


@dataclass(frozen=True, slots=True)
class Ready:
    """An actor was placed and answers."""

    actor: Actor


@dataclass(frozen=True, slots=True)
class Opened:
    """A slot's meter runs; `shared` names the physical device when others could meter it too."""

    slot: Slot
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """A slot follows its rank, with the meter of the device that the rank really uses."""

    slot: Slot
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    """A node's part of the job was started."""

    node: int


@dataclass(frozen=True, slots=True)
class Announced:
    """A rank's tracer is active."""

    place: Place
    announcement: Announcement


@dataclass(frozen=True, slots=True)
class Exited:
    """A node's part of the job has ended."""

    node: int
    code: int


@dataclass(frozen=True, slots=True)
class Collected:
    """A rank's tables are written."""

    place: Place


@dataclass(frozen=True, slots=True)
class Joined:
    """The ranks' arrivals are joined."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """A rank has its figures."""

    place: Place


@dataclass(frozen=True, slots=True)
class Lost:
    """An actor died."""

    actor: Actor
    why: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone with everything on it."""

    node: int


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A function that an actor ran raised; `place` when it was about one rank."""

    call: str
    error: MagnetonError
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The run shall end now."""

    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; seconds since the run began."""

    now_s: float


Event: TypeAlias = (
    Ready | Opened | Attached | Launched | Announced | Exited | Collected | Joined | Summarised | Lost | NodeLost
    | CallFailed | Stop | Tick
)  # fmt: skip


# --- decisions ---


@dataclass(frozen=True, slots=True)
class Open:
    """Start to sample at a slot; `resume` takes over from a killed actor."""

    slot: Slot
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """Stop sampling at a slot whose device another one owns."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the job on all nodes."""


@dataclass(frozen=True, slots=True)
class Attach:
    """Tell a slot which rank is its own."""

    place: Place
    announcement: Announcement


@dataclass(frozen=True, slots=True)
class End:
    """End a node's part of the job."""

    node: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a new actor where one died."""

    actor: Actor


@dataclass(frozen=True, slots=True)
class Collect:
    """Turn a rank's spool into tables."""

    place: Place


@dataclass(frozen=True, slots=True)
class Join:
    """Join the ranks' arrivals."""


@dataclass(frozen=True, slots=True)
class Summarise:
    """Have a rank work out its figures."""

    place: Place


Decision: TypeAlias = Open | Share | Launch | Attach | End | Replace | Collect | Join | Summarise
