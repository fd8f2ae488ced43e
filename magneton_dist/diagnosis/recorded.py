"""One variant's side of a finding, out of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magneton_dist.detect.regions.records import StepRecord


@dataclass(frozen=True)
class Recorded:
    """One variant's side of a finding.

    Attributes:
        name: of the variant.
        settings: of the rank that is shown.
        record, ops: the traced step, and the operators of the region by their place in it.
    """

    name: str
    settings: Mapping[str, str]
    record: StepRecord
    ops: Sequence[int]

    def seconds(self, place: int) -> float:
        """How long operator `place` of `ops` took on the host; 0 where it was not timed."""
        start, end = (self.record.ops[name][self.ops[place]] for name in ("start_ns", "end_ns"))
        return 0.0 if start is None or end is None else float(end - start) / 1e9
