"""Follows one rank's spool while it is written: sums that survive when the tables do not.

Only closed segments are read; the tracer closes one every half second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from magneton_dist.tracer.rows import FIELDS

_STEP = b'["step"'
_COLLECTIVE = b'["collective"'
_UNITS = FIELDS["step"].index("units") + 1
_CALL_ID = FIELDS["collective"].index("call_id") + 1


@dataclass(slots=True)
class Sums:
    """What a rank has done so far: finished steps, units worked on (None: not said), collectives issued."""

    steps: int = 0
    units: float | None = None
    collectives: int = 0
    joules: float | None = None


class Follower:
    """Reads each segment in folder `segments` once; damaged rows are left to `collect` to report."""

    def __init__(self, segments: Path) -> None:
        self.sums = Sums()
        self._segments = segments
        self._next = 0

    def advance(self) -> Sums:
        """Read the segments closed since the call before."""
        while (path := self._segments / f"{self._next:06d}.jsonl").exists():
            self._next += 1
            self._add(path.read_bytes().splitlines())
        return self.sums

    def _add(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.startswith(_STEP):
                self.sums.steps += 1
                units = _field(line, _UNITS)
                if units is not None:
                    self.sums.units = (self.sums.units or 0.0) + units
        last = next((line for line in reversed(lines) if line.startswith(_COLLECTIVE)), None)
        if last is not None:  # calls are numbered as they are issued
            self.sums.collectives = max(self.sums.collectives, int(_field(last, _CALL_ID) or 0) + 1)


def _field(line: bytes, index: int) -> float | None:
    try:
        value = msgspec.json.decode(line)[index]
    except (msgspec.DecodeError, IndexError):
        return None
    return value if isinstance(value, int | float) else None
