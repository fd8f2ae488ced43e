from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.diagnosis.prove import Flipped, Proof, Verdict, minimal, prove


def counting(behaves: Callable[[Flipped], object]) -> tuple[Callable[[Flipped], object], list[Flipped]]:
    asked: list[Flipped] = []

    def observe(flipped: Flipped) -> object:
        asked.append(flipped)
        return behaves(flipped)

    return observe, asked


def test_one_factor_among_decoys_is_proved():
    assert prove(4, lambda flipped: 2 in flipped) == Proof(Verdict.PROVED, (2,))


def test_two_that_only_together_make_the_difference_are_proved_together():
    assert prove(5, lambda flipped: {1, 4} <= flipped) == Proof(Verdict.PROVED, (1, 4))


def test_two_that_each_do_something_else_are_proved_together():
    assert prove(4, lambda flipped: (0 in flipped, 3 in flipped)) == Proof(Verdict.PROVED, (0, 3))


def test_two_of_which_either_is_enough_are_not_proved():
    assert prove(4, lambda flipped: bool({0, 3} & flipped)) == Proof(Verdict.EITHER, (0, 3))


def test_two_that_are_enough_only_together_and_not_needed_are_said_to_be_that():
    """Either pair is enough, no factor alone is."""
    found = prove(4, lambda flipped: {0, 1} <= flipped or {2, 3} <= flipped)
    assert found == Proof(Verdict.TOGETHER, (0, 1))


def test_worlds_that_behave_alike_have_no_cause():
    observe, asked = counting(lambda flipped: "same")
    assert prove(5, observe) == Proof(Verdict.ALIKE)
    assert len(asked) == 2
    assert prove(0, lambda flipped: "same") == Proof(Verdict.ALIKE)


def test_a_world_that_fails_is_no_proof():
    """Flipping 0 alone breaks the call: only with 1 does it do what B does."""
    behaves = {frozenset(): "a", frozenset({0}): "error", frozenset({1}): "a", frozenset({0, 1}): "b"}
    assert prove(2, behaves.__getitem__) == Proof(Verdict.PROVED, (0, 1))


def test_a_world_of_which_nothing_is_known_is_no_proof():
    """0 alone does what B does; whether B needs it is not known: its process was killed."""
    behaves = {frozenset(): "a", frozenset({0}): "b", frozenset({1}): "a", frozenset({0, 1}): "b"}
    assert prove(2, behaves.__getitem__) == Proof(Verdict.PROVED, (0,))
    behaves[frozenset({1})] = None
    assert prove(2, behaves.__getitem__) == Proof(Verdict.EITHER, (0,))
    behaves[frozenset({0, 1})] = None
    assert prove(2, behaves.__getitem__) == Proof(Verdict.ALIKE)


def test_no_world_is_asked_twice_and_the_likeliest_is_tried_first():
    observe, asked = counting(lambda flipped: 3 in flipped)
    assert prove(5, observe, order=[3, 0, 1, 2, 4]).factors == (3,)
    assert len(asked) == len(set(asked)) == 4  # nothing, everything, 3 alone, all but 3


@given(st.integers(2, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_any_set_that_is_needed_as_a_whole_is_found(case: tuple[int, set[int]]):
    count, needed = case
    assert prove(count, lambda flipped: needed <= flipped) == Proof(Verdict.PROVED, tuple(sorted(needed)))
    assert sorted(minimal(range(count), lambda few: needed <= set(few))) == sorted(needed)
