"""One traced step of one rank as the region detectors look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from magneton_dist.detect.source_lines import user_frames
from magneton_dist.energy.memory import StepMemory, step_memory
from magneton_dist.energy.operators import moved_bytes, operator_classes
from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.recorded import StepGraph, step_graph
from magneton_dist.records.store import RankRecord, rank_folder

MOST_SHAPES = 12  # tensors of a list operator that are named one by one


class Tables(Protocol):
    """The record of a rank: `records.store.RankRecord` or `frontends.graph_record.GraphRecord`."""

    def table(self, name: str) -> pl.DataFrame:
        """The table `name` of `records.schema.TABLES`."""
        ...


@dataclass(frozen=True, eq=False)
class StepRecord:
    """The graph of a traced step and what its operators are called.

    `stacks`: stack id -> ``file:line function``, innermost first. `launched`: (operators,) intervals on the device
    that each operator launched, None where none were captured. `origin`: repeat and rank, None outside of an audit.
    """

    step: StepGraph
    stacks: dict[int, list[str]]
    launched: Ints | None
    origin: tuple[int, int] | None = None

    @classmethod
    def of(cls, record: Tables, number: int, origin: tuple[int, int] | None = None) -> StepRecord:
        """Traced step `number` of `record`."""
        step = step_graph(record.table("ops"), record.table("values"), record.table("fingerprints"), number)
        stacks = {
            stack_id: [f"{f['file']}:{f['line']} {f['function']}" for f in frames]
            for stack_id, frames in record.table("stacks").iter_rows()
        }
        return cls(step, stacks, _launched(step.ops["op_id"], record.table("activities")), origin)

    @property
    def ops(self) -> pl.DataFrame:
        """OPS rows in order of execution."""
        return self.step.ops

    @cached_property
    def moved_bytes(self) -> Ints:
        """(operators,) bytes read and written."""
        return self._moved.to_numpy()

    @cached_property
    def _moved(self) -> pl.Series:
        return moved_bytes(self.ops, self.step.values.unique("value_id"))

    @cached_property
    def classes(self) -> list[str]:
        """(operators,) class of each: a key of a profile's operators, layout or collective."""
        return operator_classes(self.ops, self._moved)

    @cached_property
    def memory(self) -> StepMemory:
        """What is alive at the step's peak."""
        return step_memory(self.step)

    @cached_property
    def tensors(self) -> list[str]:
        """(values,) ``float32[8, 1024]``."""
        columns = self.step.values.select("dtype", "shape").iter_rows()
        return [f"{dtype or '?'}[{', '.join(map(str, shape or ()))}]" for dtype, shape in columns]

    def shown(self, values: Sequence[int]) -> list[str]:
        """`tensors` of these values, a long list cut."""
        names = [self.tensors[v] for v in values[:MOST_SHAPES]]
        return names if len(values) <= MOST_SHAPES else [*names, f"and {len(values) - MOST_SHAPES} more"]

    @cached_property
    def op_stacks(self) -> list[tuple[str, ...]]:
        """(operators,) the user's frames, innermost first; all frames where none is the user's."""
        known = {i: tuple(user_frames(frames) or frames) for i, frames in self.stacks.items()}
        return [known.get(stack_id, ()) for stack_id in self.ops["stack_id"].to_list()]

    @cached_property
    def frames(self) -> frozenset[str]:
        """Every frame of `op_stacks`."""
        return frozenset(frame for stack in set(self.op_stacks) for frame in stack)

    @cached_property
    def signatures(self) -> list[tuple[object, ...]]:
        """(operators,) what makes two operators of a graph alike: name, phase, tensors and source line."""
        graph = self.step.graph
        inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
        name = self.tensors.__getitem__
        return [
            (op, phase, tuple(map(name, read)), tuple(map(name, made)), stack[:1])
            for op, phase, read, made, stack in zip(
                self.ops["name"].to_list(), self.ops["phase"].to_list(), inputs, outputs, self.op_stacks, strict=True
            )
        ]


# variant, repeat (by position), rank, number of the traced step
Load = Callable[[str, int, int, int], StepRecord]


@dataclass(frozen=True)
class RecordedSteps:
    """A `Load` of runs on disk, small enough to be sent to another process.

    `folders`: of each variant's repeats, by number.
    """

    folders: Mapping[str, Mapping[int, Path]]

    def __call__(self, variant: str, repeat: int, rank: int, step: int) -> StepRecord:
        """Nothing that was read is kept: tables are large."""
        record = RankRecord(rank_folder(self.folders[variant][repeat], rank))
        return StepRecord.of(record, step, origin=(repeat, rank))


@dataclass(frozen=True)
class PairedSteps:
    """`load`, with repeats counted among those that are paired: `repeats` are their numbers there."""

    load: Load
    repeats: Sequence[int]

    def __call__(self, variant: str, repeat: int, rank: int, step: int) -> StepRecord:
        """Traced step `step` of a rank."""
        return self.load(variant, self.repeats[repeat], rank, step)


def _launched(op_id: pl.Series, activities: pl.DataFrame) -> Ints | None:
    mine = activities.filter(pl.col("op_id").is_in(op_id.implode()))
    if not mine.height:
        return None
    counts = mine.group_by("op_id").len("launched")
    joined = op_id.to_frame().join(counts, on="op_id", how="left", maintain_order="left")
    return np.asarray(joined["launched"].fill_null(0).cast(pl.Int64).to_numpy())
