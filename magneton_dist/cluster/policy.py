"""What to do about failures. Decides only; the coordinator and the driver carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

PLACE_S = 60.0  # others may hold what the ranks need
PEERS_S = 5.0  # after one node failed, the others may end by themselves
GIVE_UP_S = 5.0  # a stopped node that says nothing for this long is not waited for
REPLACEMENTS = 1  # of one actor, in one run


def may_replace(times: int) -> bool:
    """Whether an actor that was replaced `times` times in this run is replaced once more."""
    return times < REPLACEMENTS


class Outcome(Protocol):
    """The part of a run's outcome that decides on the runs after it."""

    @property
    def variant(self) -> str:
        """What ran."""
        ...

    @property
    def discarded(self) -> bool:
        """Whether it was a warm-up."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Of the job; None when it was lost."""
        ...


def given_up(outcomes: Sequence[Outcome]) -> frozenset[str]:
    """Variants that are not run again: the warm-up failed, or two runs did."""
    failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
    by_variant: dict[str, list[Outcome]] = {}
    for outcome in failed:
        by_variant.setdefault(outcome.variant, []).append(outcome)
    return frozenset(
        variant for variant, runs in by_variant.items() if len(runs) > 1 or any(run.discarded for run in runs)
    )
