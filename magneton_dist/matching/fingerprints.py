"""Comparison of fingerprints: do two values hold the same numbers, up to layout and rounding?

The levels are those of `magneton_dist.tracer.invariants`. Moments decide first. Unfoldings (by s4, or singular
values where both sides have them) can veto between tensors of one shape, or of shapes of which one merges
modes of the other; between other shapes only the unfoldings that both have can be compared, and a difference
says nothing: equal sizes need not be the same modes. Profiles under fixed signs see the order of the elements;
they tell reordered copies apart, and veto nothing, for mixture of experts and context parallelism permute
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt
import polars as pl

from magneton_dist.matching.arrays import Floats, Ints, Ragged

NORM_TOLERANCE = 4  # of profiles, times eps
SIGN_TOLERANCE = 4.5
PROFILE = 10  # numbers of one mode, of which the first two are norms
EQUAL, UNKNOWN, DIFFERENT = 1, 0, -1

Shape = tuple[int, ...]
BySize = dict[int, list[Floats]]
Measure = Callable[[Floats, Floats], float]


@dataclass(frozen=True)
class Fingerprint:
    """Of one content in one shape.

    Args:
        features: see `features_of`.
        shape: lengths of the modes longer than one, ascending.
        s4: smaller side of an unfolding -> s4 of each unfolding of that size, as arrays of one.
        profiles: length of a mode -> the profile of each mode of that length.
        singular: like s4, with all singular values; empty when they were not taken.
    """

    features: Floats
    shape: Shape
    s4: BySize
    profiles: BySize
    singular: BySize


class Fingerprints:
    """A FINGERPRINTS table as arrays; item i is the fingerprint of row i."""

    def __init__(self, table: pl.DataFrame) -> None:
        self.checksum: Ints = np.array([int(text, 16) for text in table["exact"]], np.uint64).view(np.int64)
        self.features = features_of(table)
        self._shape = ragged(table["shape"])
        self._unfoldings, self._s4 = ragged(table["unfoldings"]), flat(table["s4"])
        self._modes, self._profiles = ragged(table["modes"]), flat(table["profiles"]).reshape(-1, PROFILE)
        self._singular = np.split(flat(table["singular"]), np.cumsum(self._unfoldings.flat)[:-1])
        self._made: dict[int, Fingerprint] = {}

    def __len__(self) -> int:
        return len(self.checksum)

    def __getitem__(self, row: int) -> Fingerprint:
        if row not in self._made:
            self._made[row] = self._make(row)
        return self._made[row]

    def _make(self, row: int) -> Fingerprint:
        start, end = self._unfoldings.start[row : row + 2]
        sizes = self._unfoldings.flat[start:end].tolist()
        first, last = self._modes.start[row : row + 2]
        return Fingerprint(
            features=self.features[row],
            shape=tuple(sorted(self._shape[row].tolist())),
            s4=_by_size(sizes, self._s4[start:end, None]),
            profiles=_by_size(self._modes[row].tolist(), self._profiles[first:last]),
            singular=_by_size(sizes, self._singular[start:end]) if self._singular[0].size else {},
        )


def _by_size(sizes: list[int], items: npt.NDArray[np.float64] | list[Floats]) -> BySize:
    out: BySize = defaultdict(list)
    for size, item in zip(sizes, items, strict=True):
        out[size].append(item)
    return dict(out)


def features_of(table: pl.DataFrame) -> Floats:
    """(rows, 5) of a FINGERPRINTS table: |x|2, |x|1/(|x|2 sqrt N), |x|4/|x|2, sum/|x|1, excluded share."""
    n = np.maximum(table["elements"].to_numpy().astype(np.float64), 1.0)
    total, l1, l2, l4, excluded = (
        table[name].to_numpy().astype(np.float64) for name in ("sum", "l1", "l2", "l4", "excluded")
    )
    positive = np.where(l2 > 0, l2, 1.0)
    return np.stack(
        [l2, l1 / (positive * np.sqrt(n)), l4 / positive, total / np.where(l1 > 0, l1, 1.0), excluded], axis=1
    )


def ragged(column: pl.Series) -> Ragged:
    """A column of lists of ints as arrays."""
    lengths = column.list.len().to_numpy().astype(np.int64)
    return Ragged(np.concatenate([[0], np.cumsum(lengths)]), flat(column).astype(np.int64))


def flat(column: pl.Series) -> npt.NDArray[np.float64]:
    """The items of a column of lists, one after the other."""
    return column.filter(column.list.len() > 0).explode(empty_as_null=True).to_numpy()


def moment_distance(a: Floats, b: Floats) -> Floats:
    """The largest difference over all features, relative where they have a scale; features are last."""
    low, high = np.minimum(a[..., :3], b[..., :3]), np.maximum(a[..., :3], b[..., :3])
    relative = np.divide(high - low, high, out=np.zeros(high.shape), where=high > 0)
    largest: Floats = np.maximum(relative.max(-1), np.abs(a[..., 3:] - b[..., 3:]).max(-1))
    return largest


def equal(a: Fingerprint, b: Fingerprint, eps: float) -> bool:
    """Do a and b hold the same numbers? True as well where only their moments can be compared."""
    return bool(moment_distance(a.features, b.features) <= eps) and compare_unfoldings(a, b, eps) != DIFFERENT


def compare_unfoldings(a: Fingerprint, b: Fingerprint, eps: float) -> int:
    """EQUAL, UNKNOWN or DIFFERENT by what unfoldings tell."""
    spectra = (a.singular, b.singular) if a.singular and b.singular else (a.s4, b.s4)
    return _compare(a.shape, spectra[0], b.shape, spectra[1], eps, _relative)


def compare_order(a: Fingerprint, b: Fingerprint, eps: float) -> int:
    """EQUAL where a and b have their elements in the same order, DIFFERENT where not."""
    return _compare(a.shape, a.profiles, b.shape, b.profiles, eps, _profile_distance)


def _compare(
    shape_a: Shape, known_a: BySize, shape_b: Shape, known_b: BySize, eps: float, measure: Measure
) -> int:
    if len(shape_a) > len(shape_b):
        shape_a, known_a, shape_b, known_b = shape_b, known_b, shape_a, known_a
    same_shape = shape_a == shape_b
    common = known_a.keys() & known_b.keys()
    for size in common:
        for one, other in ((known_a, known_b), (known_b, known_a))[: 1 + same_shape]:
            if any(min(measure(u, v) for v in other[size]) > eps for u in one[size]):
                return DIFFERENT if merges_into(shape_b, shape_a) else UNKNOWN
    return EQUAL if common else UNKNOWN


@lru_cache(maxsize=65536)
def merges_into(fine: Shape, coarse: Shape) -> bool:
    """Can modes of `fine` be merged so that the lengths are those of `coarse`? Both ascending."""
    if len(fine) < len(coarse) or prod(fine) != prod(coarse):
        return False
    if len(fine) == len(coarse):
        return fine == coarse
    first, *rest = fine
    return any(
        merges_into(tuple(sorted([*rest[:i], first * other, *rest[i + 1 :]])), coarse)
        for i, other in enumerate(rest)
    )


def _relative(u: Floats, v: Floats) -> float:
    scale = max(float(np.linalg.norm(u)), float(np.linalg.norm(v)))
    return float(np.linalg.norm(u - v)) / scale if scale > 0 else 0.0


_NORM_OF = np.array([0, 1] + [0] * 4 + [1] * 4)
_TOLERANCES = np.array([NORM_TOLERANCE] * 2 + [SIGN_TOLERANCE] * (PROFILE - 2), np.float64)


def _profile_distance(u: Floats, v: Floats) -> float:
    """Largest difference in units of eps; rounding errors grow with the norm of the sums along the mode."""
    norms = np.maximum(1.0, np.maximum(u[:2], v[:2]))
    return float((np.abs(u - v) / norms[_NORM_OF] / _TOLERANCES).max())
