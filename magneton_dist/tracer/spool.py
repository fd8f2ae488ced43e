"""The way out of a rank: rows into memory, twice a second into a closed segment file.

A segment is renamed into place when it is complete, so that a killed rank loses at most the last half second
and a reader never waits. Formats are in `magneton_dist.tracer.rows`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import Callable

from magneton_dist.tracer.thinning import Thinning

PERIOD_S = 0.5
_BATCH = 256  # rows encoded at once: the encoder holds the interpreter meanwhile
# Kept for the next try when a segment cannot be written: few, and others refer to them.
_KEPT = frozenset({"fault", "mark", "stack", "step", "knob", "parameter"})
_NESTED = frozenset({"op", "value", "fingerprint", "stack", "parameter"})  # kinds with a list among their fields

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Spool:
    """Append-only rows of one rank.

    Args:
        folder: existing folder for the segments.
        max_bytes: beyond it collectives and stamps are thinned, their sums stay exact.
    """

    def __init__(self, folder: str, max_bytes: float) -> None:
        self.live = True
        self.before_flush: list[Callable[[], None]] = []
        self._folder = folder
        self._thinning = Thinning(max_bytes)
        self._rows: list[Sequence[object]] = []
        # The short way for hot paths: a whole row, kind first, that nobody changes any more.
        self.append = self._rows.append
        self._first: list[Sequence[object]] = []
        self._faults: set[str] = set()
        self._segment = 0
        self._writing = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="magneton-dist-spool", daemon=True)
        self._thread.start()

    def put(self, *row: object) -> None:
        """Append a row, kind first. From any thread, about 0.1 µs; never blocks, never raises."""
        if self.live:
            self.append(row)

    def put_first(self, row: Sequence[object]) -> None:
        """In `before_flush`: put a row before all that are not written yet."""
        self._first.append(row)

    def fault(self, where: str, error: BaseException | str) -> None:
        """Say, once per `where`, what the tracer could not do or left out."""
        if where not in self._faults:
            self._faults.add(where)
            message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.put("fault", where, " ".join(message.split())[:500])

    def guard(self, where: str, act: Callable[[], None]) -> None:
        """Call `act`; what it raises becomes a fault."""
        try:
            act()
        except Exception as error:
            self.fault(where, error)

    def flush(self, timeout_s: float = 5.0) -> None:
        """Close a segment with everything put so far. Failures are recorded, then silent."""
        if not self.live or not self._writing.acquire(timeout=timeout_s):
            return
        try:
            for prepare in self.before_flush:
                self.guard("spool", prepare)
            put = self._rows[:]
            del self._rows[: len(put)]  # others only append: what came meanwhile stays
            rows = [*self._first, *put]
            self._first.clear()
            try:
                self._write(rows)
            except OSError as error:
                self._rows[:0] = [row for row in rows if row[0] in _KEPT]
                self.fault("spool", error)
        except Exception as error:
            self.fault("spool", error)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Write the rest and take no more rows."""
        if self.live:
            self._thinning.closing = True
            self.flush()
            self.live = False
            self._closed.set()

    def darken(self) -> None:
        """Be that of a forked child: no thread is left, and any lock may be held for ever."""
        self.live = False

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_S):
            self.flush()

    def _write(self, rows: Sequence[Sequence[object]]) -> None:
        rows = self._thinning.keep(rows)
        if not rows:
            return
        text = _lines(rows)
        path = os.path.join(self._folder, f"{self._segment:06d}.jsonl")
        with open(path + ".open", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".open", path)
        self._segment += 1
        if self._thinning.written(len(text)):
            self.fault(
                "spool cap",
                "capture.max_mb is reached: from here on only some collectives and stamps have rows, "
                "the sums of the others are exact",
            )


def _lines(rows: Sequence[Sequence[object]]) -> str:
    """JSON lines; flat rows are encoded many at a time, which is three times as fast."""
    lines = [_encode(row) for row in rows if row[0] in _NESTED]
    flat = [row for row in rows if row[0] not in _NESTED]
    for start in range(0, len(flat), _BATCH):
        # A quote inside a JSON string is escaped, so this can only be the seam between two flat rows.
        lines.append(_encode(flat[start : start + _BATCH])[1:-1].replace('],["', ']\n["'))
    return "\n".join(lines) + "\n"
