from __future__ import annotations

from dataclasses import dataclass

from magneton_dist.cluster.policy import given_up


@dataclass(frozen=True)
class Ran:
    variant: str
    discarded: bool
    exit_code: int | None


def test_a_variant_that_fails_its_warm_up_is_given_up() -> None:
    assert given_up([Ran("a", True, 1), Ran("b", False, 0)]) == {"a"}


def test_one_failed_repeat_is_forgiven_and_two_are_not() -> None:
    assert given_up([Ran("a", False, 1), Ran("b", False, 0)]) == frozenset()
    assert given_up([Ran("a", False, 1), Ran("b", False, 0), Ran("a", False, None)]) == {"a"}
