"""Waste among the operators and collectives of one variant, told without a second one.

One rank of each class (same operators) is looked at, in its first repeat; what it finds holds for all ranks of
the class, whose costs are added up.
"""

from __future__ import annotations

import numpy as np

from magneton_dist.detect.operators.collectives import RankSteps, redundant_collectives
from magneton_dist.detect.operators.findings import OfClass, findings_of
from magneton_dist.detect.operators.flow import Flow
from magneton_dist.detect.operators.waste import StepWaste, step_waste
from magneton_dist.detect.regions.records import Load
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.matching.graph import UNKNOWN
from magneton_dist.records.audit import Finding

MOST_CLASSES = 8  # looked at, those of most ranks first
MOST_STEPS = 2  # traced steps of a rank in which waste must be seen
MOST_WITNESSES = 4  # further ranks of a class that are asked whether a collective changed anything there


def alone(runs: VariantRuns, load: Load) -> list[Finding]:
    """Operators and collectives of `runs` that did nothing for it.

    Args:
        runs: the repeats of a variant.
        load: a traced step of a rank of its repeat, by position.
    """
    classes = []
    for structure, ranks in _classes(runs)[:MOST_CLASSES]:
        seen = _look(runs, structure, ranks[0], load)
        if seen is not None:
            classes.append(OfClass(structure, ranks, seen))
    if not classes:
        return []
    steps = RankSteps(runs, load, MOST_WITNESSES, MOST_STEPS)
    return [*findings_of(runs, classes), *redundant_collectives(runs, classes, steps)]


def _classes(runs: VariantRuns) -> list[tuple[str, list[int]]]:
    """Structure of the first traced step, and the ranks that have it in the first repeat."""
    found: dict[str, list[int]] = {}
    for rank, summary in sorted(runs.repeats[0].items()):
        if summary.traced:
            found.setdefault(summary.traced[0].structure, []).append(rank)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _look(runs: VariantRuns, structure: str, rank: int, load: Load) -> StepWaste | None:
    """Waste of the rank's first traced step that is waste in the next ones too."""
    traced = [t.step for t in runs.repeats[0][rank].traced if t.structure == structure][:MOST_STEPS]
    first, *others = [step_waste(Flow.of(load(runs.name, 0, rank, step))) for step in traced]
    if not (first.flow.record.step.graph.kind != UNKNOWN).any():
        return None  # without fingerprints nothing is certain
    for other in others:
        for kind, mask in first.masks.items():
            first.masks[kind] = np.asarray(mask & other.masks[kind])
    return first
