import msgspec
import pytest

from magneton_dist.records.audit import Counterfactual, Interval, RankResult, StateShare
from magneton_dist.reports.palette import shown_state
from magneton_dist.reports.story import doubts, headline, saved_joules, saved_words, shown_states, worst_ranks

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("phase", "activity", "name"),
    [
        ("working", "wait", "wait"),
        ("finished", "wait", "shadow"),
        ("finished", "transfer", "shadow"),
        ("finished", "overlap", "shadow"),
        ("finished", "idle", "done"),
        ("finished", "compute", "compute"),
        ("finished", "released", "released"),
        ("working", "something new", "unresolved"),
    ],
)
def test_states_of_two_axes_have_one_word(phase, activity, name):
    assert shown_state(phase, activity) == name


def test_waste_names_the_dearer_variant_whichever_it_is(audit):
    told = headline(audit)
    # 534.762 J against 454.252 J, from the simulation's states
    assert told.sentence == "join wastes 15 % (modelled) of its energy: early-exit does the same work without it."
    assert told.waste
    dearer = replace(audit.comparison, energy_ratio=Interval(1.25))
    told = headline(replace(audit, comparison=dearer, energy_kind="measured"))
    assert told.sentence == "early-exit wastes 20 % of its energy: join does the same work without it."


@pytest.mark.parametrize(
    ("states", "idle_s", "unjoined_s", "doubt"),
    [
        ({"idle": 10.0}, {"unknown": 9.0, "host": 1.0}, 0.0, ", but 90 % of the time is unexplained"),
        ({"idle": 10.0}, {"loader": 5.0, "host": 5.0}, 0.0, ""),
        ({"idle": 8.0, "compute": 2.0}, {}, 0.0, ", but 80 % of the time is unexplained"),
        ({"unresolved": 10.0}, {}, 0.0, ", but 100 % of the time is unexplained"),
        ({"unresolved": 10.0}, {}, 9.0, ""),  # known to be collectives
        ({"idle": 2.0, "compute": 8.0}, {}, 0.0, ""),
    ],
)
def test_no_waste_found_is_not_said_of_time_that_nobody_knows(alone, states, idle_s, unjoined_s, doubt):
    shares = {f"working/{name}": StateShare(seconds, None) for name, seconds in states.items()}
    rank = replace(alone.variants["join"].ranks[0], states=shares, idle_s=idle_s, unjoined_s=unjoined_s)
    told = headline(replace(alone, findings=[], variants={"join": replace(alone.variants["join"], ranks=[rank])}))
    assert told.sentence == f"No waste found in join{doubt}."


@pytest.mark.parametrize("verdict", ["no difference", "trade-off", "inconclusive"])
def test_other_verdicts_never_speak_of_waste(audit, verdict):
    told = headline(replace(audit, comparison=replace(audit.comparison, verdict=verdict)))
    assert told.verdict == verdict
    assert not told.waste
    assert "waste" not in told.sentence


def test_alone_leads_with_its_first_finding_or_says_there_is_none(alone):
    assert headline(alone).sentence == "join: Rank 0 ran 76 all-reduces of zeros after its last batch"
    clean = headline(replace(alone, findings=[]))
    assert clean.sentence == "No waste found in join."
    assert not clean.waste
    failed = {"join": replace(alone.variants["join"], runs=0)}
    nothing = headline(replace(alone, findings=[], variants=failed))
    assert (nothing.verdict, nothing.sentence) == ("not audited", "No run of join could be counted.")


def test_time_that_equal_ranks_would_save_is_told_where_nobody_is_to_blame(alone):
    slow = [
        Counterfactual("rank 1", "rank", "join", 9.0, 1.0, 0.1, 50.0, "modelled"),
        Counterfactual("all ranks alike", "ranks", "join", 8.0, 2.0, 0.2, 100.0, "modelled"),
    ]
    told = headline(replace(alone, findings=[], counterfactuals=slow))
    assert (told.sentence, told.reason) == (
        "join would take 20 % less time with all ranks alike.", "rank 1 alone, as fast as its like, 10 % less."
    )
    assert headline(replace(alone, counterfactuals=slow)).reason == headline(alone).reason  # a finding comes first


def test_joules_of_counterfactuals_are_set_apart_from_those_of_findings(alone):
    unmeasured = Counterfactual("rank 1", "rank", "join", 9.0, 1.0, 0.1)
    assert saved_words(replace(alone, counterfactuals=[unmeasured])) == ""
    words = saved_words(replace(alone, counterfactuals=[unmeasured, replace(unmeasured, saved_j=5.0)]))
    assert "all that the devices would draw in the time saved" in words
    assert "beyond idling" in words


def test_more_joules_for_less_time_are_not_called_saved(alone):
    slow = Counterfactual("pipeline stage 0", "stage", "run", 9.0, 1.0, 0.1, -2e5, "modelled")
    assert saved_joules(slow) == "none, 200 kJ more"
    assert saved_joules(replace(slow, saved_j=2e5)) == "200 kJ"
    assert "faster than its like" in saved_words(replace(alone, counterfactuals=[slow]))
    assert "faster than its like" not in saved_words(replace(alone, counterfactuals=[replace(slow, saved_j=2e5)]))


def test_what_no_state_accounts_for_is_a_residual():
    states = {"working/compute": StateShare(1.0, 60.0), "finished/wait": StateShare(1.0, 30.0)}
    rank = RankResult(0, "n", "cpu", 100.0, states)
    assert shown_states(rank) == {"compute": (1.0, 60.0), "shadow": (1.0, 30.0), "residual": (0.0, 10.0)}
    assert "residual" not in shown_states(replace(rank, energy_j=90.1))


def test_unmeasured_joules_stay_unknown_when_states_are_summed():
    states = {"finished/wait": StateShare(1.0, None), "finished/transfer": StateShare(2.0, 5.0)}
    assert shown_states(RankResult(0, "n", "cpu", None, states)) == {"shadow": (3.0, None)}


def test_worst_ranks_come_first_and_only_when_not_all_fit(crowd, audit):
    assert worst_ranks(audit, 2) == ([0, 1], 0)
    # rank r has 8 + r % 7 batches: multiples of 7 finish first and burn longest in shadow
    worst, hidden = worst_ranks(crowd[0], 16)
    assert all(rank % 7 == 0 for rank in worst)
    assert (len(worst), hidden) == (16, 112)
    # rank 5 burns little, but it is the one that all wait for
    waits = replace(crowd[0].findings[0], kind="straggler-wait", ranks=[5])
    worst, hidden = worst_ranks(replace(crowd[0], findings=[waits]), 16)
    assert worst[0] == 5
    assert all(rank % 7 == 0 for rank in worst[1:])


def test_doubts_lead_with_failed_runs(troubled):
    assert doubts(troubled) == [
        "early-exit: 2 of 4 runs failed (exit codes 0, 0, 137, 1)",
        "rank 1 of early-exit, repeat 2: killed (exit code 137); its last 0.4 s are lost",
    ]
