from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.cluster import events, policy
from magneton_dist.cluster.analysis import Announcement
from magneton_dist.cluster.events import Agent, Place, Slot
from magneton_dist.cluster.states import (
    Aggregating,
    Diagnosing,
    Done,
    Draining,
    Facts,
    Failed,
    Placing,
    Running,
    Shape,
    Starting,
    State,
)
from magneton_dist.cluster.transitions import begin, step
from magneton_dist.errors import ClusterError, InputError

ONE = Shape(nodes=1, per_node=2)
TWO = Shape(nodes=2, per_node=1)


def announcement(rank: int, local_rank: int | None = None, restart: int = 0) -> Announcement:
    local = rank if local_rank is None else local_rank
    return Announcement(
        rank, local, 2, pid=100 + rank, start_ticks=1, restart=restart, device="cpu", distributed=True,
        segments=f"l{local}-{restart}",
    )  # fmt: skip


def feed(state: State, happened: Iterable[events.Event]) -> tuple[State, list[events.Decision]]:
    decided: list[events.Decision] = []
    for event in happened:
        state, decisions = step(state, event)
        decided += decisions
    return state, decided


def running(shape: Shape = ONE, **known: object) -> Running:
    """A run of `shape` whose ranks have all announced themselves."""
    ranks = {}
    for number, slot in enumerate(sorted(shape.slots)):
        ranks[Place(slot.node, slot.index)] = announcement(number, slot.index)
    return Running(replace(Facts(shape, ranks=ranks), **known))  # type: ignore[arg-type]


def test_a_run_goes_through_every_state_in_order() -> None:
    state, decided = begin(Facts(ONE), ONE.agents | ONE.slots)
    assert isinstance(state, Placing)
    assert set(decided) == {events.Replace(Agent(0)), events.Replace(Slot(0, 0)), events.Replace(Slot(0, 1))}

    state, decided = feed(state, [events.Ready(Agent(0)), events.Ready(Slot(0, 0)), events.Ready(Slot(0, 1))])
    assert isinstance(state, Starting)
    assert decided == [events.Open(Slot(0, 0)), events.Open(Slot(0, 1))]

    state, decided = feed(state, [events.Opened(Slot(0, 0)), events.Opened(Slot(0, 1))])
    assert decided == [events.Launch()]
    state, _ = step(state, events.Launched(0))
    assert isinstance(state, Running)

    first, second = announcement(0), announcement(1)
    state, decided = feed(state, [events.Announced(Place(0, 0), first), events.Announced(Place(0, 1), second)])
    assert decided == [events.Attach(Place(0, 0), first), events.Attach(Place(0, 1), second)]

    state, decided = step(state, events.Exited(0, 0))
    assert isinstance(state, Draining)
    assert decided == [events.Collect(Place(0, 0)), events.Collect(Place(0, 1))]

    state, decided = feed(state, [events.Collected(Place(0, 0)), events.Collected(Place(0, 1))])
    assert isinstance(state, Aggregating)
    assert decided == [events.Join()]

    state, decided = step(state, events.Joined())
    assert isinstance(state, Diagnosing)
    assert decided == [events.Summarise(Place(0, 0)), events.Summarise(Place(0, 1))]

    state, decided = feed(state, [events.Summarised(Place(0, 0)), events.Summarised(Place(0, 1))])
    assert isinstance(state, Done)
    assert decided == []
    assert state.facts.missing == ()
    assert state.facts.exit_code == 0


def test_the_job_starts_only_when_every_meter_runs() -> None:
    state, _ = begin(Facts(TWO), frozenset())
    state, decided = step(state, events.Opened(Slot(1, 0)))
    assert decided == []
    _, decided = step(state, events.Opened(Slot(0, 0)))
    assert decided == [events.Launch()]


def test_actors_that_are_there_are_not_placed_again() -> None:
    state, decided = begin(Facts(ONE), frozenset())
    assert isinstance(state, Starting)
    assert all(isinstance(decision, events.Open) for decision in decided)


def test_one_slot_owns_a_physical_device() -> None:
    state, _ = begin(Facts(ONE), frozenset())
    state, first = step(state, events.Opened(Slot(0, 0), shared="0/package-0"))
    state, second = step(state, events.Opened(Slot(0, 1), shared="0/package-0"))
    assert first == []
    assert second == [events.Share(Slot(0, 1)), events.Launch()]
    assert state.facts.owners == {"0/package-0": Slot(0, 0)}


def test_a_slot_that_moves_to_another_device_gives_its_first_one_up() -> None:
    state, _ = feed(running(), [events.Attached(Slot(0, 0), "0/GPU-a"), events.Attached(Slot(0, 0), "0/GPU-b")])
    assert state.facts.owners == {"0/GPU-b": Slot(0, 0)}


def test_a_discarded_run_is_not_analysed() -> None:
    state, decided = step(running(analysed=False), events.Exited(0, 0))
    assert isinstance(state, Done)
    assert decided == []


def test_a_discarded_run_that_fails_is_analysed() -> None:
    state, decided = step(running(analysed=False), events.Exited(0, 1))
    assert isinstance(state, Draining)
    assert len(decided) == 2
    assert state.facts.exit_code == 1


def test_a_job_without_ranks_is_done_at_its_end() -> None:
    state, decided = step(Running(Facts(ONE)), events.Exited(0, 3))
    assert isinstance(state, Done)
    assert decided == []
    assert state.facts.exit_code == 3


def test_a_killed_rank_actor_is_replaced_while_the_job_runs() -> None:
    state, decided = step(running(), events.Lost(Slot(0, 1), "killed"))
    assert decided == [events.Replace(Slot(0, 1))]
    state, decided = step(state, events.Ready(Slot(0, 1)))
    assert decided == [events.Open(Slot(0, 1), resume=True)]
    state, decided = step(state, events.Opened(Slot(0, 1)))
    assert decided == [events.Attach(Place(0, 1), announcement(1))]
    assert isinstance(state, Running)
    assert any("readings" in what for what in state.facts.missing)


def test_a_rank_actor_is_replaced_once_and_its_rank_is_then_missing() -> None:
    state, _ = feed(running(), [events.Lost(Slot(0, 1), "killed"), events.Ready(Slot(0, 1))])
    state, decided = step(state, events.Lost(Slot(0, 1), "killed again"))
    assert decided == []
    state, decided = step(state, events.Exited(0, 0))
    assert decided == [events.Collect(Place(0, 0)), events.Collect(Place(0, 1))]
    # the second one has no handle any more: the coordinator says at once that it is lost
    state, _ = feed(state, [events.Lost(Slot(0, 1), "it died earlier"), events.Collected(Place(0, 0))])
    assert isinstance(state, Aggregating)
    assert state.collected == {Place(0, 0)}
    assert any(what.startswith("rank 1: tables") for what in state.facts.missing)


def test_a_replacement_that_dies_before_it_is_ready_is_not_waited_for() -> None:
    state, _ = feed(running(), [events.Lost(Slot(0, 1), "killed"), events.Lost(Slot(0, 1), "killed again")])
    _, decided = step(state, events.Exited(0, 0))
    assert decided == [events.Collect(Place(0, 0)), events.Collect(Place(0, 1))]  # the second fails at once


def test_a_replacement_that_is_not_ready_at_the_end_collects_when_it_is() -> None:
    state, _ = step(running(), events.Lost(Slot(0, 1), "killed"))
    state, decided = step(state, events.Exited(0, 0))
    assert decided == [events.Collect(Place(0, 0))]
    state, decided = step(state, events.Ready(Slot(0, 1)))
    assert decided == [events.Open(Slot(0, 1), resume=True), events.Collect(Place(0, 1))]


def test_a_rank_actor_killed_at_its_analysis_is_replaced_and_asked_again() -> None:
    state, _ = step(running(), events.Exited(0, 0))
    state, decided = step(state, events.Lost(Slot(0, 0), "out of memory"))
    assert decided == [events.Replace(Slot(0, 0))]
    state, decided = step(state, events.Ready(Slot(0, 0)))
    assert events.Collect(Place(0, 0)) in decided


def test_a_killed_agent_ends_the_run_with_an_unknown_exit_code() -> None:
    state, decided = step(running(), events.Lost(Agent(0), "killed"))
    assert isinstance(state, Draining)
    assert state.facts.exit_code is None
    assert decided == [events.Collect(Place(0, 0)), events.Collect(Place(0, 1))]


def test_nodes_whose_peer_failed_may_end_by_themselves_and_are_ended_later() -> None:
    state, _ = feed(running(TWO), [events.Tick(10.0), events.Exited(0, 1)])
    state, decided = step(state, events.Tick(10.0 + policy.PEERS_S - 0.1))
    assert decided == []
    state, decided = step(state, events.Tick(10.0 + policy.PEERS_S))
    assert decided == [events.End(1)]
    state, _ = step(state, events.Exited(1, 143))
    assert isinstance(state, Draining)
    assert state.facts.exit_code == 1


def test_a_lost_node_loses_its_tables_and_not_the_others() -> None:
    state, decided = step(running(TWO), events.NodeLost(1))
    assert decided == []  # nothing can be put on a node that is gone
    assert isinstance(state, Running)
    state, _ = step(state, events.Tick(policy.PEERS_S))
    state, decided = step(state, events.Exited(0, 143))
    assert isinstance(state, Draining)
    assert decided == [events.Collect(Place(0, 0))]
    assert state.facts.exit_code == 143
    assert "node 1 was lost" in state.facts.missing


def test_stop_ends_every_node_and_keeps_what_was_recorded() -> None:
    state, decided = step(running(TWO), events.Stop("SIGINT"))
    assert decided == [events.End(0), events.End(1)]
    state, decided = feed(state, [events.Exited(0, 143), events.Exited(1, 143)])
    assert isinstance(state, Draining)
    assert state.facts.stopped == "SIGINT"


def test_a_stopped_node_that_does_not_answer_is_given_up() -> None:
    state, _ = feed(running(), [events.Tick(1.0), events.Stop("SIGTERM")])
    state, _ = step(state, events.Tick(1.0 + policy.GIVE_UP_S - 0.1))
    assert isinstance(state, Running)
    state, _ = step(state, events.Tick(1.0 + policy.GIVE_UP_S))
    assert isinstance(state, Draining)
    assert state.facts.exits == {0: None}


def test_the_time_limit_stops_the_job_and_says_so() -> None:
    state, decided = step(running(timeout_s=30.0), events.Tick(29.9))
    assert decided == []
    state, decided = step(state, events.Tick(30.0))
    assert decided == [events.End(0)]
    assert state.facts.stopped == "the job's time limit of 30 s"


def test_stop_before_the_job_runs_needs_no_job_to_end() -> None:
    state, _ = begin(Facts(ONE), ONE.agents | ONE.slots)
    state, decided = step(state, events.Stop("SIGINT"))
    assert isinstance(state, Done)
    assert decided == []


@pytest.mark.parametrize("error", [InputError("no such script"), ClusterError("no meter")])
def test_a_run_that_cannot_start_fails_with_the_reason(error: InputError | ClusterError) -> None:
    state, _ = begin(Facts(TWO), frozenset())
    state, decided = step(state, events.CallFailed("start", error))
    assert isinstance(state, Failed)
    assert state.error is error
    assert decided == [events.End(0), events.End(1)]


def test_placing_gives_up_after_a_while() -> None:
    state, _ = begin(Facts(ONE), ONE.agents | ONE.slots)
    state, _ = feed(state, [events.Ready(Agent(0)), events.Tick(policy.PLACE_S + 1)])
    assert isinstance(state, Failed)
    assert "rank slot 0" in state.error.what


def test_one_rank_whose_analysis_fails_does_not_take_the_others_along() -> None:
    state, _ = step(running(), events.Exited(0, 0))
    state, _ = feed(
        state,
        [
            events.CallFailed("collect", ClusterError("torn"), Place(0, 0)),
            events.Collected(Place(0, 1)),
            events.Joined(),
        ],
    )
    assert isinstance(state, Diagnosing)
    assert state.waiting == {Place(0, 1)}
    assert state.facts.missing == ("tables of rank 0: torn",)


def test_a_failed_join_still_leaves_the_tables() -> None:
    state, _ = step(running(), events.Exited(0, 0))
    state, _ = feed(state, [events.Collected(Place(0, 0)), events.Collected(Place(0, 1))])
    state, _ = step(state, events.CallFailed("join", ClusterError("no")))
    assert isinstance(state, Done)
    assert state.facts.missing == ("figures of every rank: no",)


def test_a_restarted_rank_is_attached_anew() -> None:
    state, decided = step(running(), events.Announced(Place(0, 0), announcement(0, restart=1)))
    assert decided == [events.Attach(Place(0, 0), announcement(0, restart=1))]
    assert any("restarted" in what for what in state.facts.missing)


def test_a_process_that_says_more_of_itself_is_no_restart() -> None:
    known = replace(announcement(0), device="GPU-1")
    state, _ = step(Running(Facts(ONE)), events.Announced(Place(0, 0), replace(known, device=None)))
    state, decided = step(state, events.Announced(Place(0, 0), known))
    assert decided == [events.Attach(Place(0, 0), known)]
    assert state.facts.missing == ()
    assert state.facts.ranks == {Place(0, 0): known}


def test_a_stop_after_long_placing_leaves_the_nodes_their_time() -> None:
    state, _ = begin(Facts(ONE), ONE.agents | ONE.slots)
    placed = [events.Ready(actor) for actor in [*ONE.agents, *ONE.slots]]
    state, _ = feed(state, [events.Tick(30.0), *placed, *map(events.Opened, ONE.slots), events.Stop("SIGINT")])
    assert isinstance(state, Running)
    state, _ = step(state, events.Tick(30.25))
    assert isinstance(state, Running)


def test_the_time_limit_begins_with_the_job() -> None:
    state, _ = begin(Facts(ONE, timeout_s=10.0), frozenset())
    state, _ = feed(state, [events.Tick(30.0), *map(events.Opened, ONE.slots), events.Launched(0)])
    state, decided = step(state, events.Tick(39.0))
    assert decided == []
    _, decided = step(state, events.Tick(40.0))
    assert decided == [events.End(0)]


def test_a_stop_before_any_node_starts_needs_no_answer() -> None:
    state, _ = feed(begin(Facts(ONE), frozenset())[0], [events.Opened(Slot(0, 0)), events.Stop("SIGINT")])
    assert isinstance(state, Done)


def test_a_meter_that_dies_while_others_open_is_opened_again_before_the_job_starts() -> None:
    state, _ = feed(begin(Facts(ONE), frozenset())[0], [events.Opened(Slot(0, 0)), events.Lost(Slot(0, 0), "killed")])
    state, decided = feed(state, [events.Ready(Slot(0, 0)), events.Opened(Slot(0, 1))])
    assert decided == [events.Open(Slot(0, 0))]
    _, decided = step(state, events.Opened(Slot(0, 0)))
    assert decided == [events.Launch()]


@pytest.mark.parametrize("then", [[], [events.Joined()]])
def test_a_join_of_which_nothing_is_left_ends_the_run(then: list[events.Event]) -> None:
    state, _ = step(running(), events.NodeLost(1))
    state = Aggregating(replace(running().facts, gone=frozenset({0})), frozenset({Place(0, 0)}))
    state, _ = feed(state, [events.Lost(Slot(0, 0), "killed"), *then])
    assert isinstance(state, Done)


def test_a_node_that_fails_to_start_late_ends_the_run() -> None:
    """The death of a rank actor meanwhile had made the run count as running, and nobody would ever say it ended."""
    state, _ = begin(Facts(TWO), frozenset())
    state, _ = feed(state, [events.Opened(slot) for slot in sorted(TWO.slots)])
    state, _ = feed(state, [events.Launched(1), events.Lost(Slot(1, 0), "killed")])
    state, decided = step(state, events.CallFailed("start", ClusterError("x")))
    assert decided == [events.End(0), events.End(1)]
    state, _ = step(state, events.Tick(policy.GIVE_UP_S))
    assert isinstance(state, Done)


def test_more_ranks_than_slots_share_actors() -> None:
    assert ONE.slot(Place(0, 0)) == Slot(0, 0)
    assert ONE.slot(Place(0, 3)) == Slot(0, 1)


PLACES = st.sampled_from([Place(node, 0) for node in range(2)])
ANY_EVENT = st.one_of(
    st.builds(events.Ready, st.sampled_from([*TWO.agents, *TWO.slots])),
    st.builds(events.Opened, st.sampled_from(sorted(TWO.slots)), st.sampled_from([None, "a"])),
    st.builds(events.Attached, st.sampled_from(sorted(TWO.slots)), st.sampled_from([None, "b"])),
    st.builds(events.Launched, st.integers(0, 1)),
    st.builds(lambda place: events.Announced(place, announcement(place.node, 0)), PLACES),
    st.builds(events.Exited, st.integers(0, 1), st.sampled_from([0, 1, 143])),
    st.builds(events.Collected, PLACES),
    st.just(events.Joined()),
    st.builds(events.Summarised, PLACES),
    st.builds(events.Lost, st.sampled_from([*TWO.agents, *TWO.slots]), st.just("killed")),
    st.builds(events.NodeLost, st.integers(0, 1)),
    st.builds(events.CallFailed, st.sampled_from(["collect", "join", "attach"]), st.just(ClusterError("x")), PLACES),
    st.builds(events.Stop, st.just("SIGINT")),
    st.builds(events.Tick, st.floats(0, 100)),
)
ORDER = [Placing, Starting, Running, Draining, Aggregating, Diagnosing, Done, Failed]


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY_EVENT, max_size=40))
def test_whatever_happens_a_run_never_goes_back_and_never_forgets(happened: list[events.Event]) -> None:
    state, _ = begin(Facts(TWO), TWO.agents | TWO.slots)
    for event in happened:
        after, _ = step(state, event)
        assert ORDER.index(type(after)) >= ORDER.index(type(state))
        assert set(state.facts.missing) <= set(after.facts.missing)
        assert state.facts.gone <= after.facts.gone
        state = after


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY_EVENT, max_size=25))
def test_whatever_happened_a_stopped_run_ends_when_everybody_answers(happened: list[events.Event]) -> None:
    state, decided = begin(Facts(TWO), TWO.agents | TWO.slots)
    for event in happened:
        state, more = step(state, event)
        decided += more
    state, _ = step(state, events.Stop("SIGINT"))
    for now_s in (200.0, 300.0):  # nobody answers: the agents are given up
        state, _ = step(state, events.Tick(now_s))
    if isinstance(state, Running):
        pytest.fail("still running after everybody was given up")
    for place in (Place(0, 0), Place(1, 0)):
        state, _ = step(state, events.Collected(place))
    state, _ = step(state, events.Joined())
    for place in (Place(0, 0), Place(1, 0)):
        state, _ = step(state, events.Summarised(place))
    assert isinstance(state, Done | Failed)


class World:
    """Carries decisions out as the coordinator and Ray do; what is `open` will be answered, in any order."""

    def __init__(self) -> None:
        self.there: set[events.Actor] = set()
        self.open: list[tuple[events.Actor | None, list[events.Event]]] = []  # whom, and the possible answers
        self.happened: list[events.Event] = []
        self.started: set[int] = set()

    def carry_out(self, decisions: list[events.Decision]) -> None:
        broken = ClusterError("x")
        for decision in decisions:
            match decision:
                case events.Replace(actor):
                    self.there.add(actor)
                    self.open.append((actor, [events.Ready(actor)]))
                case events.Open(slot):
                    self.ask(slot, events.Opened(slot), events.CallFailed("open", broken))
                case events.Launch():
                    for node in range(TWO.nodes):
                        self.ask(Agent(node), events.Launched(node), events.CallFailed("start", broken))
                    for place in (Place(0, 0), Place(1, 0)):
                        self.open.append((None, [events.Announced(place, announcement(place.node, 0))]))
                case events.Attach(place):
                    self.ask(TWO.slot(place), events.Attached(TWO.slot(place)), events.CallFailed("attach", broken))
                case events.Collect(place):
                    self.ask(TWO.slot(place), events.Collected(place), events.CallFailed("collect", broken, place))
                case events.Join():
                    self.open.append((None, [events.Joined(), events.CallFailed("join", broken)]))
                case events.Summarise(place):
                    self.ask(TWO.slot(place), events.Summarised(place), events.CallFailed("summarise", broken, place))

    def answer(self, answers: list[events.Event], luck: int) -> None:
        answer = answers[0] if luck else answers[-1]
        self.happened.append(answer)
        if isinstance(answer, events.Launched):
            self.started.add(answer.node)

    def poll(self, nodes: Iterable[int]) -> None:
        """Ask for the end of jobs that have started, as the coordinator does while the run is running."""
        asked = {answers[0].node for _, answers in self.open if isinstance(answers[0], events.Exited)}
        for node in sorted(self.started.intersection(nodes) - asked):
            self.ask(Agent(node), events.Exited(node, 0), events.Exited(node, 1))

    def ask(self, actor: events.Actor, *answers: events.Event) -> None:
        if actor in self.there:
            self.open.append((actor, list(answers)))
        else:
            self.happened.append(events.Lost(actor, "it died earlier"))

    def kill(self, actor: events.Actor) -> None:
        if actor in self.there:
            self.there.remove(actor)
            self.open = [(whom, answers) for whom, answers in self.open if whom != actor]
            self.happened.append(events.Lost(actor, "killed"))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_run_with_nothing_outstanding_is_over(data: st.DataObject) -> None:
    state, decisions = begin(Facts(TWO), TWO.agents | TWO.slots)
    world = World()
    world.carry_out(decisions)
    now_s, actors = 0.0, sorted([*TWO.agents, *TWO.slots], key=str)
    kills = 12  # without end they would keep a run from ending
    for _ in range(400):
        if isinstance(state, Running) and not world.happened:
            world.poll(state.facts.running)
        if not world.happened and kills and data.draw(st.integers(0, 9)) == 0:
            kills -= 1
            world.kill(data.draw(st.sampled_from(actors)))
        elif not world.happened and world.open:
            _, answers = world.open.pop(data.draw(st.integers(0, len(world.open) - 1)))
            world.answer(answers, data.draw(st.integers(0, 4)))
        elif not world.happened and isinstance(state, Running):
            now_s += policy.GIVE_UP_S  # a node whose agent died is given up in time
            world.happened.append(events.Tick(now_s))
        elif not world.happened:
            break
        if world.happened:
            state, decisions = step(state, world.happened.pop(0))
            world.carry_out(decisions)
        if isinstance(state, Done | Failed):
            return
    assert isinstance(state, Done | Failed), state
