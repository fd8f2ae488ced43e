"""Texts by number, and which of them a pattern fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_NAME = 4096  # characters of a name that are kept


class _Numbers(dict[object, int]):
    """Numbers what it is asked for, in the order of the first time."""

    def __missing__(self, key: object) -> int:
        self[key] = number_ = len(self)
        return number_


class Names:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self._ids = _Numbers()
        self._texts = pl.Series(dtype=pl.String)

    def ids(self, texts: Iterable[object]) -> Ints:
        """The numbers of `texts`."""
        return np.fromiter(map(self._ids.__getitem__, texts), np.int64)

    def known(self) -> list[Any]:
        """What was given, in order of the numbers."""
        return list(self._ids)

    def texts(self) -> list[str]:
        """The texts in order of their numbers."""
        return [str(t)[:MOST_NAME] for t in self._ids]

    def column(self, ids: pl.Expr) -> pl.Expr:
        """The texts of a column of these numbers."""
        if len(self._texts) < len(self._ids):
            self._texts = pl.Series(self.texts(), dtype=pl.String)
        return pl.lit(self._texts).gather(ids)


@lru_cache(1 << 12)  # the ranks of a job have the same names
def _fits(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None


class Matching:
    """Which names a pattern fits; each name is looked at once."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._known = np.empty(0, np.int8)  # by number: 1 where it fits, -1 where that has not been looked at

    def __call__(self, ids: Ints, texts: Sequence[object]) -> Bools:
        """For each event, by the numbers and texts of their names."""
        if not len(ids):
            return np.empty(0, np.bool_)
        if (most := int(ids.max())) >= len(self._known):
            more = np.full(most + 1 - len(self._known) + len(self._known) // 2, -1, np.int8)
            self._known = np.concatenate([self._known, more])
        known = self._known
        for row in np.flatnonzero(known[ids] < 0).tolist():
            if known[ids[row]] < 0:
                known[ids[row]] = _fits(self._pattern, str(texts[row])[:MOST_NAME])
        fits: Bools = known[ids] == 1
        return fits
