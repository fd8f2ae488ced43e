"""Types of arrays, and lists of lists as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of ints of different lengths: list i is ``flat[start[i]:start[i + 1]]``."""

    start: Ints
    flat: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """Pack `lists`."""
        start = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(x) for x in lists], out=start[1:])
        flat = np.fromiter((v for x in lists for v in x), np.int64, int(start[-1]))
        return cls(start, flat)

    def __getitem__(self, i: int) -> Ints:
        return self.flat[self.start[i] : self.start[i + 1]]

    @property
    def rows(self) -> Ints:
        """The list that each entry of `flat` belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def lists(self) -> list[list[int]]:
        """As Python lists."""
        flat, start = self.flat.tolist(), self.start.tolist()
        return [flat[i:j] for i, j in pairwise(start)]
