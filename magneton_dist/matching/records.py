"""Equal work in two records: from the tables of one rank on either side to regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import polars as pl

from magneton_dist.errors import InputError, RecordError
from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.crowds import Look
from magneton_dist.matching.divergence import Divergence, divergences
from magneton_dist.matching.dominators import cut_at_dominators
from magneton_dist.matching.fingerprints import DIFFERENT, compare_order
from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.graph import UNKNOWN, MatchGraph
from magneton_dist.matching.recorded import TINY, StepGraph, step_graph, tolerance, traced_steps
from magneton_dist.matching.regions import cut_regions
from magneton_dist.matching.steps import in_every_step, same_structure

Algorithm = Literal["frontier", "dominators"]
_MUTE = f"all are constant, not finite, rounding errors, or of fewer than {TINY} elements"
CUTS = {"frontier": cut_regions, "dominators": cut_at_dominators}


class Record(Protocol):
    """One rank's tables: a `RankRecord`, or a `GraphRecord` of a callable."""

    def table(self, name: str) -> pl.DataFrame:
        """The table `name` of `records.schema.TABLES`."""


@dataclass(frozen=True, eq=False)
class RecordMatch:
    """Two records matched. Operators and values are numbered as in `a` and `b`.

    `graph_a`, `graph_b` hold the numbers of all `steps` that the match holds in, `a` and `b` the first of them.
    """

    a: StepGraph
    b: StepGraph
    graph_a: MatchGraph
    graph_b: MatchGraph
    matched: Match
    eps: float
    steps: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    def confidence(self) -> Floats:
        """(regions,) see `frontier.region_confidence`."""
        return region_confidence(self.matched, self.graph_a, self.graph_b)

    def divergences(self) -> list[Divergence]:
        """Where and why the runs part for good."""
        return divergences(self.a, self.b, self.matched, self.eps)

    def reordered(self) -> list[int]:
        """Ids of matched values whose elements are in another order on the two sides."""
        of_a = _members(self.matched.value_a, self.matched.ids)
        of_b = _members(self.matched.value_b, self.matched.ids)
        look = Look(self.graph_a, self.graph_b, of_a, of_b, self.eps)
        numel_a, numel_b = self.graph_a.numel, self.graph_b.numel
        return [
            i
            for i, (xs, ys) in enumerate(zip(of_a, of_b, strict=True))
            # a whole has its parts under the same id, which have no order in common with it
            if look.possible and len({*numel_a[xs].tolist(), *numel_b[ys].tolist()}) == 1
            if look.compare(i, i, compare_order) == DIFFERENT
        ]


def match_records(
    a: Record, b: Record, algorithm: Algorithm = "frontier", eps: float | None = None
) -> RecordMatch:
    """Match the traced steps of two records; only what is equal in every common step is matched.

    Args:
        a, b: one rank of each run.
        algorithm: how regions are cut, see `matching.regions` and `matching.dominators`.
        eps: relative tolerance of fingerprints; by default 1e-3, or 1e-2 where 16 or 8 bits take part.

    Raises:
        InputError: `eps` is none, or there is no such algorithm.
        RecordError: a side has no operators of a traced step, or no step was traced on both.
    """
    if eps is not None and not (isinstance(eps, (int, float)) and 0 <= eps < 1):
        raise InputError(f"eps is {eps!r}", where="compare", do="give a relative tolerance from 0 to below 1, as 1e-3")
    if algorithm not in CUTS:
        raise InputError(f"no algorithm is called {algorithm!r}", where="compare", do=f"use one of {', '.join(CUTS)}")
    notes: list[str] = []
    steps_a, steps_b = (traced_steps(side.table("ops")) for side in (a, b))
    common = [step for step in steps_a if step in steps_b]
    if not common and steps_a and steps_b:
        if len(steps_a) > 1 or len(steps_b) > 1:
            raise RecordError(
                f"traced steps {steps_a} and {steps_b} have none in common",
                do="trace the same steps: set capture.warmup_steps and graph_steps alike",
            )
        notes.append(f"step {steps_a[0]} of the first run is compared with step {steps_b[0]} of the second")
    pairs: list[tuple[int | None, int | None]] = [(step, step) for step in common] or [(None, None)]
    graphs = [(_step(a, of_a), _step(b, of_b)) for of_a, of_b in pairs]
    alike_a, alike_b = (same_structure([pair[side].graph for pair in graphs]) for side in (0, 1))
    alike = [place for place in alike_a if place in alike_b] or [0]
    if len(alike) < len(graphs):
        notes.append(
            f"{len(graphs) - len(alike)} of {len(graphs)} traced steps call other operators and are left out"
        )
    used = [graphs[place] for place in alike]
    graph_a, graph_b = (in_every_step([pair[side].graph for pair in used]) for side in (0, 1))
    for name, graph in (("first", graph_a), ("second", graph_b)):
        if not (graph.kind != UNKNOWN).any():
            notes.append(f"the {name} record has no fingerprints: nothing can be matched")
        elif not graph.anchor.any():
            notes.append(f"no value of the {name} record can be told from others: {_MUTE}")
    tolerances = max(tolerance(*pair) for pair in used) if eps is None else eps
    matched = match(graph_a, graph_b, tolerances, CUTS[algorithm])
    return RecordMatch(
        *used[0], graph_a, graph_b, matched, tolerances, tuple(pair[0].step for pair in used), notes
    )


def _step(record: Record, step: int | None) -> StepGraph:
    return step_graph(record.table("ops"), record.table("values"), record.table("fingerprints"), step)


def _members(ids: Ints, count: int) -> list[list[int]]:
    """Values of every id."""
    members: list[list[int]] = [[] for _ in range(count)]
    for value in np.nonzero(ids >= 0)[0].tolist():
        members[ids[value]].append(value)
    return members
