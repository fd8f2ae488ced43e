"""The second half of the state machine: the job is over, and its records become figures. See `transitions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from magneton_dist.cluster import policy
from magneton_dist.cluster.events import (
    Actor,
    CallFailed,
    Collect,
    Collected,
    Decision,
    Event,
    Join,
    Joined,
    Lost,
    Open,
    Place,
    Ready,
    Replace,
    Slot,
    Summarise,
    Summarised,
)  # fmt: skip
from magneton_dist.cluster.states import Aggregating, Diagnosing, Done, Draining, Facts, State

Result: TypeAlias = tuple[State, list[Decision]]


def drain(facts: Facts) -> Result:
    """The job is over: ask for the tables of all ranks."""
    if not facts.analysed and facts.exit_code == 0:
        return Done(facts), []
    waiting = frozenset(place for place in facts.ranks if place.node not in facts.gone)
    return _settle(Draining(facts, waiting), _ask(facts, waiting, Collect))


def draining(state: Draining, event: Event) -> Result:
    """The ranks' tables are being written."""
    facts, waiting = state.facts, state.waiting
    match event:
        case Collected(place) if place in waiting:
            state = replace(state, waiting=waiting - {place}, collected=state.collected | {place})
            return _settle(state, [])
        case CallFailed(_, error, place) if place in waiting and place is not None:
            facts = facts.lack(f"tables of rank {facts.ranks[place].rank}: {error}")
            return _settle(replace(state, facts=facts, waiting=waiting - {place}), [])
        case Lost(Slot() as slot, why):
            facts, waiting, again = _lost_at_work(facts, waiting, slot, f"tables: {why}")
            return _settle(replace(state, facts=facts, waiting=waiting), again)
        case Ready(Slot() as slot):
            again = [Collect(place) for place in facts.places(slot) if place in waiting]
            return state, [Open(slot, resume=True), *again]
    return state, []


def _settle(state: Draining, decisions: list[Decision]) -> Result:
    if state.waiting:
        return state, decisions
    if not state.collected:
        return Done(state.facts), decisions
    return Aggregating(state.facts, state.collected), [*decisions, Join()]


def aggregating(state: Aggregating, event: Event) -> Result:
    """The ranks' arrivals are being joined."""
    facts, collected = state.facts, state.collected
    match event:
        case Joined():
            return (Diagnosing(facts, collected) if collected else Done(facts)), _ask(facts, collected, Summarise)
        case CallFailed("join", error):
            return Done(facts.lack(f"figures of every rank: {error}")), []
        case Lost(Slot() as slot, why):
            facts, collected, again = _lost_at_work(facts, collected, slot, f"figures: {why}")
            return (replace(state, facts=facts, collected=collected) if collected else Done(facts)), again
    return state, []


def diagnosing(state: Diagnosing, event: Event) -> Result:
    """The ranks' figures are being worked out."""
    facts, waiting = state.facts, state.waiting
    decisions: list[Decision] = []
    match event:
        case Summarised(place):
            waiting = waiting - {place}
        case CallFailed(_, error, place) if place in waiting and place is not None:
            facts = facts.lack(f"figures of rank {facts.ranks[place].rank}: {error}")
            waiting = waiting - {place}
        case Lost(Slot() as slot, why):
            facts, waiting, decisions = _lost_at_work(facts, waiting, slot, f"figures: {why}")
        case Ready(Slot() as slot):
            decisions = [Summarise(place) for place in facts.places(slot) if place in waiting]
        case _:
            return state, []
    return (replace(state, facts=facts, waiting=waiting) if waiting else Done(facts)), decisions


def put_back(facts: Facts, actor: Actor) -> tuple[Facts, list[Decision]]:
    """Replace `actor`; without a decision it stays lost: its node is gone, or it was replaced before."""
    times = facts.replaced.get(actor, 0)
    if actor.node in facts.gone or not policy.may_replace(times):
        return replace(facts, pending=facts.pending - {actor}), []  # nobody waits for it any more
    facts = replace(facts, replaced={**facts.replaced, actor: times + 1}, pending=facts.pending | {actor})
    return facts, [Replace(actor)]


def _lost_at_work(
    facts: Facts, waiting: frozenset[Place], slot: Slot, what: str
) -> tuple[Facts, frozenset[Place], list[Decision]]:
    """A slot died with work to do: another one does it, or its ranks are given up."""
    mine = waiting.intersection(facts.places(slot))
    if not mine:
        return facts, waiting, []
    facts, again = put_back(facts, slot)
    if not again:
        for place in sorted(mine):
            facts = facts.lack(f"rank {facts.ranks[place].rank}: {what}")
        waiting -= mine
    return facts, waiting, again


def _ask(facts: Facts, places: Iterable[Place], what: type[Collect] | type[Summarise]) -> list[Decision]:
    """Ask each rank's slot; those being replaced are asked when they are ready."""
    return [what(place) for place in sorted(places) if facts.shape.slot(place) not in facts.pending]
