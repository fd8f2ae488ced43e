"""What is left out once a rank's spool has reached its cap, and the exact sums that replace it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from magneton_dist.tracer.rows import FIELDS

_COLUMN = {name: index for index, name in enumerate(FIELDS["collective"], start=1)}
_ID, _GROUP, _OP, _ORIGIN = (_COLUMN[name] for name in ("call_id", "group", "op", "origin"))
_BYTES, _ISSUE, _END, _STACK = (_COLUMN[name] for name in ("bytes", "issue_ns", "end_ns", "stack_id"))

_FIRST_STRIDE = 16  # one in so many rows is kept at first; doubled with every further part of the cap
_DOUBLE_EVERY = 0.01
_DROPPED = frozenset({"op", "value", "fingerprint", "activity"})  # bulk kinds that have no sums
_SUMS_EVERY = 0.01  # sums are written when this part of the time since the cap has passed again
_SUMS_AT_MOST_S = 10.0


class Thinning:
    """Chooses the rows to keep.

    Below the cap all. Beyond it: one in `stride` completed collectives (by call id) and stamps; the other
    collectives go into sums per (group, op, origin, stack), written as differences since the last time.
    """

    def __init__(self, max_bytes: float) -> None:
        self.closing = False  # write the sums whatever the time
        self._max_bytes = max_bytes
        self._bytes = 0.0
        self._next_double = 0.0
        self._stride = 0  # 0: below the cap
        self._stamps = 0
        self._kept_in_flight: set[object] = set()
        self._sums: dict[tuple[object, ...], list[int]] = {}
        self._capped_s = self._summed_s = 0.0

    def written(self, size: int) -> bool:
        """Take note of `size` more bytes on disk; True when this reached the cap."""
        self._bytes += size
        reached = self._stride == 0 and self._bytes > self._max_bytes
        if reached:
            self._stride = _FIRST_STRIDE
            self._next_double = self._bytes + _DOUBLE_EVERY * self._max_bytes
            self._capped_s = self._summed_s = time.monotonic()
        while self._stride and self._bytes > self._next_double:
            self._stride *= 2
            self._next_double += _DOUBLE_EVERY * self._max_bytes
        return reached

    def keep(self, rows: Sequence[Sequence[object]]) -> Sequence[Sequence[object]]:
        """The rows to write out of `rows`, with sums and a fault row when their time has come."""
        if self._stride == 0:
            for row in rows:
                if row[0] == "collective":
                    in_flight = self._kept_in_flight
                    (in_flight.add if row[_END] is None else in_flight.discard)(row[_ID])
            return rows
        kept: list[Sequence[object]] = [row for row in rows if self._keeps(row)]
        kept.extend(self._due_sums())
        return kept

    def _keeps(self, row: Sequence[object]) -> bool:
        kind = row[0]
        if kind == "stamp":
            self._stamps += 1
            return self._stamps % self._stride == 0
        if kind != "collective":
            return kind not in _DROPPED
        call_id, end = row[_ID], row[_END]
        chosen = isinstance(call_id, int) and call_id % self._stride == 0
        if end is None:
            if chosen:
                self._kept_in_flight.add(call_id)
            return chosen
        if chosen or call_id in self._kept_in_flight:  # its earlier row, without an end, must be replaced
            self._kept_in_flight.discard(call_id)
            return True
        self._add(row)
        return False

    def _add(self, row: Sequence[object]) -> None:
        sums = self._sums.setdefault((row[_GROUP], row[_OP], row[_ORIGIN], row[_STACK]), [0, 0, 0])
        size, issue, end = row[_BYTES], row[_ISSUE], row[_END]
        sums[0] += 1
        sums[1] += size if isinstance(size, int) else 0
        sums[2] += end - issue if isinstance(end, int) and isinstance(issue, int) else 0

    def _due_sums(self) -> Sequence[Sequence[object]]:
        now = time.monotonic()
        wait = min(_SUMS_EVERY * (now - self._capped_s), _SUMS_AT_MOST_S)
        if not self._sums or (now - self._summed_s < wait and not self.closing):
            return []
        due: list[Sequence[object]] = [("collective_sum", *key, *sums) for key, sums in self._sums.items()]
        self._sums.clear()
        self._summed_s = now
        return due
