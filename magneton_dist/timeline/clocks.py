"""Clocks of ranks: from a rank's own monotonic clock to the common one and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magneton_dist.records.manifest import Clock
from magneton_dist.timeline.intervals import Ints

UNKNOWN_ERROR_NS = 1 << 60  # sums of a few of these stay within int64


@dataclass(frozen=True)
class RankClock:
    """``common = own + offset_ns + drift * (own - at_ns)``, true within `error_ns`."""

    offset_ns: int = 0
    error_ns: int = 0
    drift: float = 0.0
    at_ns: int = 0

    def to_common(self, own_ns: int) -> int:
        """The common clock's time at this rank's `own_ns`."""
        return own_ns + self.offset_ns + round(self.drift * (own_ns - self.at_ns))

    def to_own(self, common_ns: int) -> int:
        """This rank's time at the common clock's `common_ns`."""
        ahead = common_ns - self.offset_ns - self.at_ns
        return self.at_ns + ahead - round(self.drift / (1.0 + self.drift) * ahead)


@dataclass(frozen=True)
class ClockTable:
    """The clocks of several ranks as arrays, for whole columns at once; row i belongs to `ranks[i]`."""

    ranks: Ints
    offset_ns: Ints
    error_ns: Ints
    drift: NDArray[np.float64]
    at_ns: Ints

    @classmethod
    def of(cls, ranks: Ints, clocks: Mapping[int, Clock | RankClock]) -> ClockTable:
        """The table of these (sorted) ranks; a rank without a clock has offset 0 and an unknown error."""
        known = [clocks.get(int(r), Clock(error_ns=UNKNOWN_ERROR_NS)) for r in ranks]
        full = [c if isinstance(c, RankClock) else RankClock(c.offset_ns, c.error_ns) for c in known]
        return cls(
            ranks,
            np.array([c.offset_ns for c in full], np.int64),
            np.array([c.error_ns for c in full], np.int64),
            np.array([c.drift for c in full], np.float64),
            np.array([c.at_ns for c in full], np.int64),
        )

    def clocks(self) -> dict[int, RankClock]:
        """One `RankClock` per rank."""
        rows = zip(self.ranks, self.offset_ns, self.error_ns, self.drift, self.at_ns, strict=True)
        return {int(r): RankClock(int(o), int(e), float(d), int(a)) for r, o, e, d, a in rows}

    def shift_ns(self, row: Ints, own_ns: Ints) -> Ints:
        """What to add to times `own_ns` of the ranks in `row` to get common times."""
        return self.offset_ns[row] + np.rint(self.drift[row] * (own_ns - self.at_ns[row])).astype(np.int64)
