"""The coordinator's state machine for one run, as pure functions: no Ray, no clocks.

    Placing ─► Starting ─► Running ─► Draining ─► Aggregating ─► Diagnosing ─► Done
       └──────────┴─────────────────────────────────────────────────────────► Failed

The coordinator feeds `step` with what happens and carries out what it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from magneton_dist.cluster import policy
from magneton_dist.cluster.ending import Result, aggregating, diagnosing, drain, draining, put_back
from magneton_dist.cluster.events import (
    Actor,
    Agent,
    Announced,
    Attach,
    Attached,
    CallFailed,
    Decision,
    End,
    Event,
    Exited,
    Launch,
    Launched,
    Lost,
    NodeLost,
    Open,
    Opened,
    Ready,
    Replace,
    Share,
    Slot,
    Stop,
    Tick,
)  # fmt: skip
from magneton_dist.cluster.states import (
    Aggregating,
    Diagnosing,
    Done,
    Draining,
    Facts,
    Failed,
    Placing,
    Running,
    Starting,
    State,
)  # fmt: skip
from magneton_dist.errors import ClusterError, MagnetonError


def begin(facts: Facts, missing: frozenset[Actor]) -> Result:
    """The first state of a run when the actors in `missing` must still be placed."""
    if missing:
        return Placing(facts, missing), [Replace(actor) for actor in sorted(missing, key=str)]
    return _start(facts)


def step(state: State, event: Event) -> Result:
    """The state after `event`, and what to do now."""
    facts = state.facts
    match event:
        case Tick(now_s):
            state = replace(state, facts=replace(facts, now_s=now_s))
        case Stop(why):
            state = replace(state, facts=replace(facts, stopped=facts.stopped or why))
        case Ready(actor):
            state = replace(state, facts=replace(facts, pending=facts.pending - {actor}))
        case NodeLost(node):
            return _node_lost(state, node)
        case _:
            pass
    handler: Callable[..., Result] = _HANDLERS[type(state)]
    return handler(state, event)


def _node_lost(state: State, node: int) -> Result:
    """Everything on the node is lost, and nothing can be put in its place."""
    state = replace(state, facts=replace(state.facts, gone=state.facts.gone | {node}).lack(f"node {node} was lost"))
    decisions: list[Decision] = []
    actors: list[Actor] = [
        Agent(node),
        *sorted(slot for slot in state.facts.shape.slots if slot.node == node),
    ]
    for actor in actors:
        state, more = step(state, Lost(actor, f"node {node} was lost"))
        decisions += more
    return state, decisions


def _placing(state: Placing, event: Event) -> Result:
    match event:
        case Ready(actor):
            waiting = state.waiting - {actor}
            return (replace(state, waiting=waiting), []) if waiting else _start(state.facts)
        case Lost(actor, _):
            facts, again = put_back(state.facts, actor)
            return (Placing(facts, state.waiting | {actor}), again) if again else _fail(facts, _unplaced(event))
        case CallFailed(_, error):
            return _fail(state.facts, error)
        case Tick(now_s) if now_s > policy.PLACE_S:
            what = f"no room within {policy.PLACE_S:g} s for {', '.join(sorted(map(str, state.waiting)))}"
            return _fail(state.facts, ClusterError(what, do="wait until others have left the cluster"))
        case Stop():
            return Done(state.facts), []
    return state, []


def _starting(state: Starting, event: Event) -> Result:
    facts = state.facts
    match event:
        case Opened(slot, shared):
            facts, decisions = _own(facts, slot, shared)
            slots = state.slots - {slot}
            if state.slots and not slots:
                decisions.append(Launch())
            return replace(state, facts=facts, slots=slots), decisions
        case Launched(node):
            nodes = state.nodes - {node}
            return (replace(state, nodes=nodes), []) if nodes else (Running(facts, facts.now_s), [])
        case CallFailed(_, error):
            return _fail(facts, error)
        case Lost(Slot() as slot, _) if state.slots:  # the job waits for all meters, also those that ran already
            facts, again = put_back(facts, slot)
            state = replace(state, facts=facts, slots=state.slots | {slot})
            return (state, again) if again else _fail(facts, _unplaced(event))
        case Ready(Slot() as slot):
            return state, [Open(slot)]
        case Stop() if state.slots:  # no node was told to start
            return Done(facts), []
        case Stop() | Lost():
            return _running(Running(facts, facts.now_s), event)
    return state, []


def _running(state: Running, event: Event) -> Result:
    facts = state.facts
    match event:
        case Announced(place, announcement):
            before = facts.ranks.get(place)  # a process says more of itself as its device and group become known
            if before is not None and (before.restart, before.pid) != (announcement.restart, announcement.pid):
                facts = facts.lack(
                    f"rank {announcement.rank} was restarted by torchrun: what it did before is not in its record"
                )
            facts = replace(facts, ranks={**facts.ranks, place: announcement})
            return replace(state, facts=facts), [Attach(place, announcement)]
        case Exited(node, code):
            return _node_ended(state, node, code)
        case Lost(Agent(node), why):
            if node in facts.exits:
                return state, []
            facts = facts.lack(f"the exit code of node {node}: its agent died ({why})")
            return _node_ended(replace(state, facts=facts), node, None)
        case Lost(Slot() as slot, _):
            facts = facts.lack(f"some readings of {slot}: it died while the job ran")
            facts, again = put_back(facts, slot)
            return replace(state, facts=facts), again
        case Ready(Slot() as slot):
            return state, [Open(slot, resume=True)]
        case Opened(slot, shared):
            facts, decisions = _own(facts, slot, shared)
            decisions += [Attach(place, facts.ranks[place]) for place in facts.places(slot)]
            return replace(state, facts=facts), decisions
        case Attached(slot, shared):
            facts, decisions = _own(facts, slot, shared)
            return replace(state, facts=facts), decisions
        case CallFailed("start", error):  # this node's job will never end, and the others wait for it
            state = replace(state, facts=facts.lack(f"start: {error}"))
            return _end(state) if state.give_up_s is None else (state, [])
        case CallFailed(call, error):
            return replace(state, facts=facts.lack(f"{call}: {error}")), []
        case Stop():
            return _end(state)
        case Tick():
            return _tick(state)
    return state, []


def _node_ended(state: Running, node: int, code: int | None) -> Result:
    facts = replace(state.facts, exits={**state.facts.exits, node: code})
    state = replace(state, facts=facts)
    if not facts.running:
        return drain(facts)
    if code != 0 and state.end_s is None:
        state = replace(state, end_s=facts.now_s + policy.PEERS_S)
    return state, []


def _end(state: Running) -> Result:
    state = replace(state, give_up_s=state.facts.now_s + policy.GIVE_UP_S, end_s=None)
    return state, [End(node) for node in state.facts.running]


def _tick(state: Running) -> Result:
    facts, now_s = state.facts, state.facts.now_s
    if state.give_up_s is not None:
        if now_s < state.give_up_s:
            return state, []
        for node in facts.running:
            facts = facts.lack(f"the exit code of node {node}: it did not answer any more")
        return drain(replace(facts, exits={**dict.fromkeys(range(facts.shape.nodes)), **facts.exits}))
    if facts.timeout_s is not None and now_s - state.began_s >= facts.timeout_s:
        return _end(replace(state, facts=replace(facts, stopped=f"the job's time limit of {facts.timeout_s:g} s")))
    if state.end_s is not None and now_s >= state.end_s:
        return _end(state)
    return state, []


def _over(state: Done | Failed, _: Event) -> Result:
    return state, []


def _start(facts: Facts) -> Result:
    slots = facts.shape.slots
    return Starting(facts, slots, frozenset(range(facts.shape.nodes))), [Open(slot) for slot in sorted(slots)]


def _own(facts: Facts, slot: Slot, shared: str | None) -> tuple[Facts, list[Decision]]:
    """The first slot to meter a physical device owns it."""
    if shared is None:
        return facts, []
    if facts.owners.get(shared, slot) != slot:
        return facts, [Share(slot)]
    others = {device: owner for device, owner in facts.owners.items() if owner != slot}
    return replace(facts, owners={**others, shared: slot}), []


def _fail(facts: Facts, error: MagnetonError) -> Result:
    return Failed(facts, error), [End(node) for node in facts.running if node not in facts.gone]


def _unplaced(event: Lost) -> ClusterError:
    return ClusterError(event.why, where=str(event.actor), do="see that the node is healthy and has memory to spare")


_HANDLERS: dict[type, Callable[..., Result]] = {
    Placing: _placing, Starting: _starting, Running: _running, Draining: draining, Aggregating: aggregating,
    Diagnosing: diagnosing, Done: _over, Failed: _over,
}  # fmt: skip
