"""What devices' performance monitors say of waits and transfers, over ranks and repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import Corroboration

_ORDER = ("contradicts", "agrees", "not available")  # the first that occurs is what is said of all


def together(said: Iterable[Corroboration]) -> Corroboration | None:
    """What several say of one state: one that contradicts speaks for all, one that is not available for none."""
    return min(said, key=lambda one: _ORDER.index(one.verdict), default=None)


def of_repeats(repeats: Sequence[RankSummary]) -> dict[str, Corroboration]:
    """By state, of one rank."""
    states = sorted({state for s in repeats for state in s.monitors})
    found = {state: together(s.monitors[state] for s in repeats if state in s.monitors) for state in states}
    return {state: one for state, one in found.items() if one is not None}


def of_waits(runs: Iterable[Mapping[int, RankSummary]], ranks: Iterable[int], state: str) -> str:
    """One line on a state of these ranks, for a finding's evidence; empty where no rank's device could be asked."""
    ranks = list(ranks)
    said = [run[rank].monitors[state] for run in runs for rank in ranks if rank in run and state in run[rank].monitors]
    one = together(said)
    return "" if one is None else f"{one.verdict}: {one.reason}"


def notes(runs: Sequence[Mapping[int, RankSummary]]) -> list[str]:
    """A line per state and verdict: on which ranks, and what the first of them showed."""
    lines = []
    ranks = sorted({rank for run in runs for rank in run})
    by_rank = {rank: of_repeats([run[rank] for run in runs if rank in run]) for rank in ranks}
    for state in sorted({state for of_rank in by_rank.values() for state in of_rank}):
        for verdict in _ORDER:
            some = [rank for rank in ranks if state in by_rank[rank] and by_rank[rank][state].verdict == verdict]
            if some:
                who = f"rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some[:8]))}{', ...' * (len(some) > 8)}"
                what = {"agrees": "agree with", "contradicts": "contradict", "not available": "tell nothing of"}
                lines.append(
                    f"performance monitors {what[verdict]} {state} on {who}: {by_rank[some[0]][state].reason}"
                )
    return lines
