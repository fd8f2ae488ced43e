"""Calls that both variants of a finding make: what can be made again, and how their arguments differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from magneton_dist.diagnosis.calls import Call, comparable
from magneton_dist.diagnosis.factors import OPTIMIZER, argument_factors
from magneton_dist.diagnosis.optimizers import optimizer_call
from magneton_dist.diagnosis.recorded import Recorded

MOST_SHOWN = 4  # arguments that differ


@dataclass(frozen=True)
class Pair:
    """The same call in both variants. `seconds`: by how much its two recorded times differ."""

    a: Call
    b: Call
    seconds: float


def candidates(a: Recorded, b: Recorded) -> Iterator[Pair]:
    """Calls that both sides make, those first that choose among operators, then by how their recorded times differ."""
    if any(side.record.ops["phase"][op] == "optimizer" for side in (a, b) for op in side.ops):
        steps = optimizer_call(a.settings, a.record), optimizer_call(b.settings, b.record)
        if steps[0] is not None and steps[1] is not None and comparable(steps[0], steps[1]):
            yield Pair(steps[0], steps[1], 0.0)
    names_a, names_b = ([side.record.ops["name"][op] for op in side.ops] for side in (a, b))
    for mine, theirs in ((a, names_b), (b, names_a)):
        for place, op in enumerate(mine.ops):
            if mine.record.ops["name"][op] not in theirs:
                call = mine.call(place)
                chosen = None if call is None else call.chosen_by()
                if chosen is not None:
                    yield Pair(chosen, chosen, 0.0)
                    break
    pairs: dict[tuple[str, ...], Pair] = {}
    blocks = SequenceMatcher(None, names_a, names_b, autojunk=False).get_matching_blocks()
    for i, j in ((block.a + k, block.b + k) for block in blocks for k in range(block.size)):
        one, other = a.call(i), b.call(j)
        if one is None or other is None or not one.operator.startswith("aten.") or not comparable(one, other):
            continue
        seconds = abs(a.seconds(i) - b.seconds(j))
        key = repr(one), repr(other)
        if key not in pairs or pairs[key].seconds < seconds:
            pairs[key] = Pair(one, other, seconds)
    yield from sorted(pairs.values(), key=lambda pair: -pair.seconds)


def differing_arguments(a: Recorded, b: Recorded) -> list[str]:
    """Arguments of operators that both sides call, where they differ, in words; those of the costliest call first."""
    found: dict[str, None] = {}
    for pair in candidates(a, b):
        for factor in argument_factors(pair.a, pair.b):
            mine, theirs = factor.values
            of = "" if pair.a.operator.startswith(OPTIMIZER) else f" of {pair.a.operator}"
            found[f"{factor.name}{of}: {mine} in {a.name}, {theirs} in {b.name}"] = None
    return list(found)[:MOST_SHOWN]
