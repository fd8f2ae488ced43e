"""The actor that leads each run: feeds the state machine and carries out what it decides."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray

from magneton_dist.cluster import clocks, events
from magneton_dist.cluster.analysis import Collected, other_gpu
from magneton_dist.cluster.calls import Calls, as_ours
from magneton_dist.cluster.crew import Crew
from magneton_dist.cluster.events import Actor, Agent, Decision, Event, Place, Slot
from magneton_dist.cluster.launching import Launch
from magneton_dist.cluster.ledger import Assignment, Ledger, number_ranks
from magneton_dist.cluster.node_agent import JobStatus, NodeFacts
from magneton_dist.cluster.outcome import Report
from magneton_dist.cluster.processes import die_with_raylet
from magneton_dist.cluster.rank_actor import Conditions, SlotFacts
from magneton_dist.cluster.spool import Sums
from magneton_dist.cluster.states import Done, Facts, Failed, Placing, Running, State
from magneton_dist.cluster.transitions import begin, step
from magneton_dist.cluster.vitals import Vitals
from magneton_dist.errors import MagnetonError
from magneton_dist.records.manifest import Clock, MeterUsed

_TICK_S = 0.25
_AGENTS_S = 0.25
_SUMS_S = 0.5
_DELIVER_S, _SLOWEST = 60.0, 2e6  # tables come at 2 MB/s or more, s and bytes/s
_CLEAR_S = 60.0


class Coordinator:
    """Leads one run at a time; the driver calls `tick` until there is an outcome or an error.

    Args:
        crew: the actors, none of them placed yet.
        join: see `analysis.Analysis`.
    """

    def __init__(self, crew: Crew, join: Callable[[Sequence[Any], Mapping[int, Clock]], Any]) -> None:
        die_with_raylet()
        self._crew = crew
        self._join = join
        self._happened: deque[Event] = deque()
        self._calls = Calls(self._crew, self._happened)
        self._vitals: Vitals[int] | None = None
        self._state: State
        self._ledger: Ledger

    def begin(self, assignment: Assignment) -> None:
        """Start a run; the one before must be over."""
        self._calls.clear()
        self._happened.clear()
        self._ledger = Ledger(assignment)
        self._polls_due_s = self._sums_due_s = 0.0
        facts = Facts(self._crew.shape, analysed=not assignment.discarded, timeout_s=assignment.job.timeout_s)
        self._state, decisions = begin(facts, self._crew.missing)
        self._carry_out(decisions)

    def stored(self, ranks: Container[int]) -> None:
        """The driver has stored the tables that the last report brought: their nodes need not keep them."""
        facts = self._state.facts
        for place, rank in number_ranks(facts.ranks).items():
            if rank in ranks:
                with suppress(MagnetonError):  # a node that has gone meanwhile keeps them
                    self._calls.ask(facts.shape.slot(place), "delivered", self._ledger.tables(rank))

    def stop(self, why: str) -> None:
        """End the run; what was recorded is still collected."""
        self._happened.append(events.Stop(why))

    def tick(self) -> Report:
        """Work for a quarter of a second, or until the run is over."""
        end_s = time.monotonic() + _TICK_S
        self._happened.append(events.Tick(self._ledger.seconds))
        self._look_for_lost_nodes()
        while True:
            while self._happened:
                self._state, decisions = step(self._state, self._happened.popleft())
                self._carry_out(decisions)
            left_s = end_s - time.monotonic()
            if isinstance(self._state, Done | Failed) or left_s <= 0:
                return self._report()
            if isinstance(self._state, Running):
                left_s = min(left_s, self._ask_around(self._state.facts))
            self._calls.wait(left_s)

    # what happens

    def _ask_around(self, facts: Facts) -> float:
        """Poll the node agents and rank actors that are due; seconds until the next are."""
        now_s = time.monotonic()
        outstanding = self._calls.outstanding()
        if now_s >= self._polls_due_s:
            self._polls_due_s = now_s + _AGENTS_S
            for node in facts.running:
                if ("poll", Agent(node)) not in outstanding:
                    then: Callable[[Any], None] = partial(self._polled, node)
                    self._calls.send("poll", Agent(node), then, self._ledger.assignment.folder)
        if now_s >= self._sums_due_s:
            self._sums_due_s = now_s + _SUMS_S
            for slot in facts.shape.slots - facts.pending:
                if self._crew.handle(slot) is not None and ("sums", slot) not in outstanding:
                    self._calls.send("sums", slot, partial(self._summed, slot))
        return min(self._polls_due_s, self._sums_due_s) - now_s

    def _look_for_lost_nodes(self) -> None:
        if self._vitals is None:
            if isinstance(self._state, Placing):
                return
            self._vitals = Vitals(self._crew.servers())
        for node in self._vitals.lost():
            for actor in self._crew.on(node):
                self._calls.forget(actor)
            self._happened.append(events.NodeLost(node))

    def _described(self, actor: Actor, description: NodeFacts | SlotFacts) -> None:
        self._crew.know(actor, description)
        self._happened.append(events.Ready(actor))

    def _metered(self, kind: type[events.Opened] | type[events.Attached], slot: Slot, meter: MeterUsed) -> None:
        given = self._ledger.meters.get(slot)
        if kind is events.Attached and given is not None and other_gpu(given.device, meter.device):
            self._ledger.disturb(f"{slot} was given {given.device}, and its rank ran on {meter.device}")
        self._ledger.meters[slot] = meter
        self._happened.append(kind(slot, self._ledger.physical(slot)))

    def _launched(self, node: int, shared: bool) -> None:
        if not shared:
            self._ledger.apart.add(node)
        niceness = self._crew.facts(node).niceness
        if niceness > 0:
            self._ledger.disturb(
                f"the job ran at low priority on {self._crew.name(node)} (nice {niceness}): start the cluster's Ray "
                "with RAY_worker_niceness=0"
            )
        self._happened.append(events.Launched(node))

    def _polled(self, node: int, status: JobStatus) -> None:
        for announcement in status.announced:
            self._happened.append(events.Announced(Place(node, announcement.local_rank), announcement))
        for other in status.others:
            self._ledger.disturb(f"audit {other} ran on {self._crew.name(node)} at the same time")
        if status.exit_code is not None:
            self._ledger.output[node] = status.output
            self._happened.append(events.Exited(node, status.exit_code))

    def _summed(self, slot: Slot, sums: Mapping[str, Sums]) -> None:
        for place in self._state.facts.places(slot):
            mine = sums.get(self._state.facts.ranks[place].segments)
            if mine is not None:
                self._ledger.sums[place] = mine

    def _collected(self, place: Place, result: tuple[Collected, Conditions]) -> None:
        self._ledger.collected[place] = result
        self._happened.append(events.Collected(place))

    def _summarised(self, place: Place, summary: Any) -> None:
        self._ledger.summaries[place] = summary
        self._happened.append(events.Summarised(place))

    # what to do about it

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case events.Replace(actor):
                    then: Callable[[Any], None] = partial(self._described, actor)
                    self._calls.watch(self._crew.put(actor), "describe", actor, then)
                case events.Open(slot, resume):
                    then = partial(self._metered, events.Opened, slot)
                    spool, device = self._ledger.spool(slot.node), self._crew.device(slot)
                    self._calls.send("open", slot, then, spool, slot.index, device, resume)
                case events.Share(slot):
                    self._calls.send("close", slot, _nothing)
                case events.Launch():
                    self._launch()
                case events.Attach(place, announcement):
                    slot = self._state.facts.shape.slot(place)
                    then = partial(self._metered, events.Attached, slot)
                    self._calls.send("attach", slot, then, self._ledger.spool(place.node), announcement)
                case events.End(node):
                    self._calls.send("stop", Agent(node), _nothing)
                case events.Collect(place):
                    self._collect(place)
                case events.Join():
                    self._join_arrivals()
                case events.Summarise(place):
                    self._summarise(place)

    def _launch(self) -> None:
        told = self._ledger.assignment
        try:
            meet = self._rendezvous()
            self._read_clocks()
        except MagnetonError as error:
            self._happened.append(events.CallFailed("start", error))
            return
        for node in range(self._crew.shape.nodes):
            launch = Launch(
                told.job, told.folder, told.values, told.environment, told.cwd, told.capture, told.token, told.origin,
                node=node,
                devices=self._crew.visible_devices(node),
                rendezvous=(*meet, "--node-rank", str(node)) if meet else (),
                temporary=told.temporary,
            )  # fmt: skip
            self._calls.send("start", Agent(node), partial(self._launched, node), launch)

    def _rendezvous(self) -> tuple[str, ...]:
        """torchrun's options for the nodes to meet: their fixed order keeps each rank on its device."""
        if self._crew.shape.nodes == 1:
            return ()
        port = self._calls.ask(Agent(0), "endpoint", self._ledger.assignment.job.torchrun.master_port)
        return ("--master-addr", self._crew.address(0), "--master-port", str(port))

    def _read_clocks(self) -> None:
        """Measure the clocks of the nodes that do not share this one."""
        here = clocks.clock_identity()
        for node in sorted(set(range(self._crew.shape.nodes)) - self._state.facts.gone):
            same = self._crew.facts(node).clock == here
            ask = partial(self._calls.ask, Agent(node), "clock_ns")
            self._ledger.clocks.setdefault(node, []).append(clocks.SAME if same else clocks.measure(ask))

    def _collect(self, place: Place) -> None:
        facts = self._state.facts
        slot = facts.shape.slot(place)
        physical = self._ledger.physical(slot)
        owner = physical is None or facts.owners.get(physical) == slot
        rank = number_ranks(facts.ranks)[place]
        self._calls.send(
            "collect", slot, partial(self._collected, place), self._ledger.assignment.folder,
            self._ledger.spool(place.node), rank, facts.ranks[place], owner, about=place,
        )  # fmt: skip

    def _join_arrivals(self) -> None:
        facts = self._state.facts
        with suppress(MagnetonError):  # a node that has gone meanwhile keeps the reading of the start
            self._read_clocks()
        try:
            joined = self._join(self._ledger.arrivals(facts), self._ledger.rank_clocks(facts))
            self._ledger.joined = ray.put(joined)
        except Exception as error:  # noqa: BLE001 - it was handed to us; whatever it raises, the tables are good
            self._happened.append(events.CallFailed("join", as_ours(error, "join")))
        else:
            self._happened.append(events.Joined())

    def _summarise(self, place: Place) -> None:
        facts = self._state.facts
        rank = self._ledger.rank_run(facts, place, self._crew.name(place.node))
        then, folder = partial(self._summarised, place), self._ledger.tables(rank.rank)
        self._calls.send("summarise", facts.shape.slot(place), then, folder, rank, self._ledger.joined, about=place)

    # what came of it

    def _report(self) -> Report:
        facts, name = self._state.facts, type(self._state).__name__
        steps = max((sums.steps for sums in self._ledger.sums.values()), default=0)
        if isinstance(self._state, Failed):
            return Report(name, steps, len(facts.ranks), facts.missing, error=self._state.error)
        if not isinstance(self._state, Done):
            return Report(name, steps, len(facts.ranks), facts.missing)
        files = self._deliver(facts)
        self._clear(facts)
        names = {node: self._crew.name(node) for node in range(self._crew.shape.nodes)}
        outcome = self._ledger.outcome(self._state.facts, names)
        return Report(name, steps, len(facts.ranks), outcome.missing, outcome, files=files)

    def _deliver(self, facts: Facts) -> dict[int, dict[str, bytes]]:
        """Tables of ranks on nodes that do not share the driver's file system."""
        files = {}
        for place, rank in number_ranks(facts.ranks).items():
            if place.node in self._ledger.apart and place in self._ledger.collected:
                try:
                    slot, folder = facts.shape.slot(place), self._ledger.tables(rank)
                    limit_s = _DELIVER_S + self._calls.ask(slot, "size", folder) / _SLOWEST
                    files[rank] = self._calls.ask(slot, "deliver", folder, limit_s=limit_s)
                except MagnetonError as error:
                    self._state = Done(self._state.facts.lack(f"tables of rank {rank}: {error}"))
        return files

    def _clear(self, facts: Facts) -> None:
        """Delete spools that have become tables, and discarded runs."""
        for node in set(range(facts.shape.nodes)) - facts.gone:
            mine = {place for place in facts.ranks if place.node == node}
            discarded = self._ledger.assignment.discarded and facts.exit_code == 0
            if discarded or (mine and mine <= self._ledger.collected.keys()):
                with suppress(MagnetonError):  # tables are there: what is left of the spool harms nobody
                    self._calls.ask(Agent(node), "clear", discarded, limit_s=_CLEAR_S)


def _nothing(_: object) -> None:
    """For calls whose value says nothing."""
