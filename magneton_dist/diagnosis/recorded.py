"""One variant's side of a finding, out of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.diagnosis.calls import Call
from magneton_dist.errors import RecordError
from magneton_dist.records.audit import OperatorsAt
from magneton_dist.records.store import RankRecord, RunRecord, rank_folder


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

    def call(self, place: int) -> Call | None:
        """Operator `place` of `ops`; None where the record lacks one of its tensors."""
        return Call.of(self.record.ops.row(self.ops[place], named=True), self._values)

    @cached_property
    def _values(self) -> dict[int, dict[str, Any]]:
        """Rows of the VALUES table that the operators mention."""
        rows = self.record.ops[list(self.ops)]
        ids = pl.concat([rows["inputs"].explode(), rows["outputs"].explode()]).drop_nulls().unique()
        values = self.record.step.values.filter(pl.col("value_id").is_in(ids.implode()))
        return {row["value_id"]: row for row in values.iter_rows(named=True)}

    def seconds(self, place: int) -> float:
        """How long operator `place` of `ops` took on the host; 0 where it was not timed."""
        start, end = (self.record.ops[name][self.ops[place]] for name in ("start_ns", "end_ns"))
        return 0.0 if start is None or end is None else float(end - start) / 1e9


class Sides:
    """Reads sides of findings; a traced step is read once, however many findings are about it.

    `runs`: records of the audit, by variant and number of the repeat.
    """

    def __init__(self, runs: Mapping[str, Mapping[int, RunRecord]]) -> None:
        self._runs = runs
        self._steps: dict[tuple[str, int, int, int], tuple[StepRecord, dict[str, str]]] = {}

    def run(self, name: str, at: OperatorsAt) -> RunRecord:
        """The run that these operators are of.

        Raises:
            RecordError: it is not in the record.
        """
        run = self._runs.get(name, {}).get(at.repeat)
        if run is None:
            raise RecordError("is not in the record", where=f"{name} repeat {at.repeat}", do="run the audit again")
        return run

    def rank(self, name: str, rank: int) -> RankRecord:
        """Rank `rank` in the first run of variant `name`.

        Raises:
            RecordError: the variant left no run.
        """
        runs = self._runs.get(name, {})
        if not runs:
            raise RecordError("is not in the record", where=name, do="run the audit again")
        return RankRecord(rank_folder(runs[min(runs)].folder, rank))

    def read(self, name: str, at: OperatorsAt) -> Recorded:
        """The side of variant `name`.

        Raises:
            RecordError: it is not in the record.
        """
        key = (name, at.repeat, at.rank, at.step)
        if key not in self._steps:
            record = RankRecord(rank_folder(self.run(name, at).folder, at.rank))
            step = StepRecord.of(record, at.step, origin=(at.repeat, at.rank))
            self._steps[key] = step, dict(record.table("knobs").iter_rows())
        step, settings = self._steps[key]
        wanted = pl.DataFrame({"op_id": at.op_ids}, schema={"op_id": pl.Int64})
        rows = step.ops.select("op_id").with_row_index("place").join(wanted, on="op_id", how="semi")
        return Recorded(name, settings, step, rows["place"].to_list())
