"""Which of the differences between two worlds makes what is observed differ: proved by flipping them.

World A has every factor as variant A has it; flipping a factor gives it the value of variant B. Nothing here knows
what a factor is or how a world is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Flipped = frozenset[int]
Observe = Callable[[Flipped], Hashable]


class Verdict(StrEnum):
    """What came of it."""

    PROVED = "proved"  # flipping just these makes A behave as B, and B without any one of them does not
    EITHER = "either"  # flipping any one of these makes A behave as B; B was not shown to need it
    TOGETHER = "together"  # flipping all of these makes A behave as B; B was not shown to need every one of them
    ALIKE = "alike"  # both worlds behave alike, or it is not known how


@dataclass(frozen=True)
class Proof:
    """A verdict, and the factors it is about, none when there is no cause."""

    verdict: Verdict
    factors: tuple[int, ...] = ()


def prove(count: int, observe: Observe, order: Sequence[int] | None = None) -> Proof:
    """Find the factors that make the difference.

    Args:
        count: how many factors there are, numbered from 0.
        observe: how a world with these factors flipped behaves, None where that is not known, which proves nothing;
            a fresh process each time it is called.
        order: which factors to try first.
    """
    everything = frozenset(range(count))
    seen: dict[Flipped, Hashable] = {}

    def behaves(flipped: Flipped) -> Hashable:
        if flipped not in seen:
            seen[flipped] = observe(flipped)
        return seen[flipped]

    target = behaves(everything)
    if behaves(frozenset()) == target or target is None:
        return Proof(Verdict.ALIKE)

    def enough(flipped: Flipped) -> bool:
        return behaves(flipped) == target

    def needed(factor: int) -> bool:
        return behaves(everything - {factor}) not in (target, None)

    sufficient = []
    for factor in order or range(count):
        if enough(frozenset({factor})):
            if needed(factor):
                return Proof(Verdict.PROVED, (factor,))
            sufficient.append(factor)
    if sufficient:
        return Proof(Verdict.EITHER, tuple(sorted(sufficient)))
    together = minimal(sorted(everything), lambda few: enough(frozenset(few)))
    verdict = Verdict.PROVED if all(map(needed, together)) else Verdict.TOGETHER
    return Proof(verdict, tuple(together))


def minimal(items: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """The fewest of `items` that are enough, of which none can be left out: Zeller's ddmin.

    Args:
        items: which are enough all together.
        enough: is this selection?
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        rests = [[item for item in kept if item not in chunk] for chunk in chunks]
        smaller = next((chunk for chunk in chunks if enough(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rest = next((rest for rest in rests if enough(rest)), None) if len(chunks) > 2 else None
        if rest is not None:
            kept, parts = rest, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept
