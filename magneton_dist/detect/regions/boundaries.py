"""How far apart are the values that both sides of a region make?

Matched values agree within the matcher's tolerance by their moments. Where both lie in one shape and order, the
sums along their modes under fixed signs estimate the relative distance of the elements themselves: rounding
errors that do not know of each other leave |sums of a - sums of b| near |a - b| (as in `detect.values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from magneton_dist.detect.regions.classes import ClassPair
from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.fingerprints import DIFFERENT, Fingerprint, compare_order, moment_distance
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.recorded import tolerance

_SIGNED = slice(2, 6)  # of a profile: sums of x, over its norm, under the signs


def boundary_error(pair: ClassPair, ops_a: Sequence[int], ops_b: Sequence[int]) -> float | None:
    """Largest relative difference of the matched values that these operators of a and b make.

    None when there is none whose fingerprints can be compared.
    """
    a, b = pair.a.step.graph, pair.b.step.graph
    made_a, made_b = _made(a, pair.match.value_a, ops_a), _made(b, pair.match.value_b, ops_b)
    eps = tolerance(pair.a.step, pair.b.step)
    errors = [value_error(made_a[i], made_b[i], eps) for i in made_a.keys() & made_b.keys()]
    return max((error for error in errors if error is not None), default=None)


def value_error(a: Fingerprint, b: Fingerprint, eps: float) -> float | None:
    """Relative difference of two contents; None when they are not the same number of elements."""
    if prod(a.shape) != prod(b.shape):
        return None  # a bundle against one of its parts
    error = float(moment_distance(a.features, b.features))
    if a.shape != b.shape or compare_order(a, b, eps) == DIFFERENT:
        return error
    for length in a.profiles.keys() & b.profiles.keys():
        for u in a.profiles[length]:
            apart = min(float(np.sqrt(np.mean((u[_SIGNED] - v[_SIGNED]) ** 2))) for v in b.profiles[length])
            error = max(error, apart)
    return error


def _made(graph: MatchGraph, ids: Ints, ops: Sequence[int]) -> dict[int, Fingerprint]:
    """Matched id -> the fingerprint of a value with it that `ops` make."""
    if graph.fingerprints is None or graph.fingerprint is None or not len(ops):
        return {}
    made = np.concatenate([graph.outputs[op] for op in ops])
    rows = graph.fingerprint[made]
    return {
        int(i): graph.fingerprints[int(row)]
        for i, row in zip(ids[made], rows, strict=True)
        if i >= 0 and row >= 0
    }
