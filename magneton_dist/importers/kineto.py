"""One Kineto (Chrome) trace as the tables of one rank's record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.importers import calls, doubts, host_times
from magneton_dist.importers.bytestream import DO
from magneton_dist.importers.call_stacks import Stacks
from magneton_dist.importers.columns import KINDS, Columns, Ints
from magneton_dist.importers.device import HELD, KIND, by_external_id
from magneton_dist.importers.enclosing import innermost
from magneton_dist.importers.events import number
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.fields import NONE
from magneton_dist.importers.frames import Frames, frames_of
from magneton_dist.importers.host_ops import computing
from magneton_dist.importers.steps import step_of, steps_of
from magneton_dist.records.host_times import HOST_TIMES
from magneton_dist.records.schema import ACTIVITIES, FAULTS, I64, IDS, MARKS


@dataclass
class RankTrace:
    """What one file holds.

    Attributes:
        path: of the file.
        rank, world_size: as the file says; None where it does not.
        host: on which it was recorded; None where the file does not say.
        device: of its activities: ``cuda:N`` or ``cpu``.
        device_name: of that device's type.
        span_ns: first and last instant of any event, on the host's wall clock.
        numbered: its steps have the numbers of `ProfilerStep`.
        calls: collectives (see `calls.of_rank`), which the caller numbers and places.
        tables: all other tables.
        host_times: what the host did while the device idled.
    """

    path: Path
    rank: int | None
    world_size: int | None
    host: str | None
    device: str
    device_name: str | None
    span_ns: tuple[int, int]
    numbered: bool
    calls: pl.DataFrame
    tables: dict[str, pl.DataFrame]
    host_times: pl.DataFrame = field(default_factory=HOST_TIMES.empty)
    versions: dict[str, str] = field(default_factory=dict)


def read_trace(path: Path, *, strict: bool = False) -> RankTrace:
    """Read one trace.

    Args:
        path: JSON or gzip of it.
        strict: refuse the file for the first event that cannot be read, instead of mending or dropping it.

    Raises:
        RecordError: it is another kind of file, cut off, without events, or (strict) damaged.
    """
    stream, columns = EventStream(path, strict=strict), Columns()
    for events in stream.batches():
        columns.add(events)
    if not columns.events:
        raise RecordError("holds no event of a host or a device", where=str(path), do=DO)
    frames = frames_of(columns, number(stream.head.base_ns) or 0, stream.lost_activities)
    damage = doubts.damage(columns, frames)
    if strict and damage:
        raise RecordError("; ".join(damage), where=str(path), do="read it without --strict")
    return _Assembly(path, stream, columns, frames, damage).trace()


class _Assembly:
    """The frames of one trace on their way into tables."""

    def __init__(
        self, path: Path, stream: EventStream, columns: Columns, frames: Frames, damage: Sequence[str]
    ) -> None:
        self.path, self.columns, self.head, self.names = path, columns, stream.head, columns.names
        self.device, self.ops = frames.device, frames.ops
        self.functions, self.syncs = frames.functions, frames.syncs
        self.marks = frames.marks.with_columns(columns.names.column(pl.col("name")).alias("annotation"))
        self.span_ns = frames.span_ns
        self.missing = frames.missing
        self.faults = [*doubts.of_stream(stream), *damage, *doubts.oddities(columns, frames)]

    def trace(self) -> RankTrace:
        """All of it."""
        device = self.device
        row, by_launch = by_external_id(self.ops, device), innermost(self.ops, *_launches_of(device))
        guessed = (row < 0) & (by_launch >= 0)
        row = np.where(guessed, by_launch, row)
        if guessed.any():
            self.faults.append(
                f"{guessed.sum()} of {len(row)} activities have no external id of an operator: theirs is the one that "
                "was being called on the thread when it launched them"
            )
        steps, numbered = self._steps()
        stacks = Stacks(self.names, self.functions)
        texts = self.columns.call_stacks.texts()
        ops, op_ids = self._ops(row, steps, stacks, texts)
        collective = (device["kind"] == KINDS.index("collective")).to_numpy()
        on_device = device.filter(collective).with_columns(self.names.column(pl.col("name")).alias("kernel"))
        if device.height:
            found = calls.device_calls(self.columns, on_device, self.ops, self.marks)
            within = innermost(self.functions, *_launches_of(on_device))
            by_op = row[collective]
        else:
            found = calls.host_calls(self.columns, self.marks)
            within = by_op = np.full(found.height, -1, np.int64)
        text_ids = self.ops["stack"].to_numpy()
        stack_ids = [
            stacks.of_function(int(f)) if f >= 0 else stacks.of_text(texts, int(text_ids[o]) if o >= 0 else NONE)
            for f, o in zip(within, by_op, strict=True)
        ]
        found = found.with_columns(
            pl.Series("stack_id", stack_ids, I64), step_of(steps, found["issue_ns"]).alias("step")
        )
        if device.height:
            activities, idled = self._activities(device, op_ids), self._host_times(device, row, steps, stacks, texts)
        else:
            activities = self._computing()
            idled = host_times.loading(activities, self.marks, steps)
        self.ops = self.ops.select("start_ns", "end_ns")
        info = self.head.distributed
        return RankTrace(
            path=self.path,
            rank=number(info.rank) if info else None,
            world_size=number(info.world_size) if info else None,
            host=self.head.host,
            device=self._device(),
            device_name=self._device_name(),
            span_ns=self.span_ns,
            numbered=numbered,
            calls=calls.of_only_group(found, info.groups if info else None),
            tables={
                "steps": steps,
                "activities": activities,
                "ops": ops,
                "stacks": stacks.table(),
                "marks": self._capture(activities.height),
                "faults": pl.DataFrame({"where": ["trace"] * len(self.faults), "message": self.faults}, FAULTS.schema),
            },
            host_times=idled,
            versions={"nccl": str(info.nccl_version)} if info and info.nccl_version else {},
        )

    def _host_times(
        self, device: pl.DataFrame, row: Ints, steps: pl.DataFrame, stacks: Stacks, texts: list[str]
    ) -> pl.DataFrame:
        """Why the device idled, and where the host waited for it (`HOST_TIMES`)."""
        if not steps.height:
            return HOST_TIMES.empty()
        if self.missing:
            self.faults.append(
                f"why its device idled is not told: {self.missing} activities that are missing may have run on it"
            )
        loader = host_times.fetches(self.marks)
        within = innermost(self.ops, *_instants(self.syncs))
        sums = host_times.causes(device, row, loader, self.syncs, within, self.ops, steps, whole=not self.missing)
        return sums.select(
            "step", "kind", self.names.column(pl.col("name")).fill_null("").alias("what"),
            stacks.of_texts(texts, sums["stack"]).alias("stack_id"), "count", "duration_ns",
        ).cast(pl.Schema(HOST_TIMES.schema))  # fmt: skip

    def _device(self) -> str:
        if self.device.height:
            used = self.device["device"].mode().sort().to_list()
            return "cuda" if used[0] == NONE else f"cuda:{used[0]}"
        backends = self.marks["annotation"].str.slice(0, 5)
        return "cuda" if (backends == "nccl:").any() else "cpu"

    def _device_name(self) -> str | None:
        """The type of the device; where it is not listed by its number, of the only type there is."""
        listed = {number(d.id): d.name for d in self.head.devices or () if d.name}
        used = self.device["device"].mode().sort().to_list()
        if used and used[0] in listed:
            return listed[used[0]]
        return next(iter(listed.values())) if len(set(listed.values())) == 1 else None

    def _ops(
        self, row: Ints, steps: pl.DataFrame, stacks: Stacks, texts: list[str]
    ) -> tuple[pl.DataFrame, pl.Series]:
        """The operators that launched something within a step, and the one of each activity (null: none)."""
        launching = np.unique(row[row >= 0])
        ops = self.ops[launching].with_columns(pl.Series("row", launching))
        ops = ops.with_columns(step_of(steps, ops["start_ns"]).alias("step")).filter(pl.col("step").is_not_null())
        ops = ops.sort("start_ns", "row").with_row_index("op_id")
        table = ops.select(
            pl.col("op_id").cast(I64), "step", self.names.column(pl.col("name")).alias("name"),
            pl.lit("other").alias("phase"), pl.lit([], IDS).alias("inputs"), pl.lit([], IDS).alias("outputs"),
            pl.lit("[]").alias("arguments"),
            stacks.of_texts(texts, ops["stack"]).alias("stack_id"),
            "start_ns", "end_ns",
        )  # fmt: skip
        ids = np.full(self.ops.height + 1, -1, np.int64)  # the last is of activities without operator
        ids[ops["row"].to_numpy()] = table["op_id"].to_numpy()
        of_activity = pl.Series(ids[row], dtype=I64)
        return table, of_activity.set(of_activity < 0, None)

    def _activities(self, device: pl.DataFrame, op_ids: pl.Series) -> pl.DataFrame:
        used = sorted(device["device"].unique())
        if len(used) > 1:
            self.faults.append(f"one process drives devices {used}: its states are of all of them together")
        known = pl.format("cuda:{}", "device")
        return device.select(
            pl.when(pl.col("device") == NONE).then(pl.lit("cuda")).otherwise(known).alias("device"),
            "stream",
            KIND,
            self.names.column(pl.col("name")).alias("name"),
            "start_ns",
            "end_ns",
            op_ids.alias("op_id"),
            *HELD,
        ).cast({"stream": I64})

    def _steps(self) -> tuple[pl.DataFrame, bool]:
        """Steps, and whether they have numbers of the profiler."""
        start, end = self.span_ns
        drained = end if not self.device.height else max(int(self.device["end_ns"].to_numpy().max()), start)
        steps, how = steps_of(self.marks, start, end, drained)
        if how:
            self.faults.append(how)
        return steps, not how

    def _computing(self) -> pl.DataFrame:
        """What a rank without a device computed (`ACTIVITIES`); nothing where the trace only lacks its device."""
        nothing = "no activity of a device is in the trace: "
        found = computing(self.ops, self.names) if self._device() == "cpu" else ACTIVITIES.empty()
        self.faults.append(nothing + (
            "its operators on the host are taken for what it computed, and the time between them for idle"
            if found.height else "what the rank did between calls is not known"
        ))  # fmt: skip
        return found

    def _capture(self, activities: int) -> pl.DataFrame:
        """Where the profiler saw the device."""
        if not activities:
            return MARKS.empty()
        start, end = self.span_ns
        detail = json.dumps({"start_ns": start, "activities": activities + self.missing})
        return pl.DataFrame({"name": ["kernels"], "t_ns": [end + 1], "detail": [detail]}, schema=MARKS.schema)


def _instants(calls: pl.DataFrame) -> tuple[Ints, Ints]:
    """Thread and start of each call."""
    return calls["thread"].to_numpy(), calls["start_ns"].to_numpy()


def _launches_of(device: pl.DataFrame) -> tuple[Ints, Ints]:
    """Thread and time of each activity's launch; `NONE` where it is not known."""
    return device["launch_thread"].fill_null(NONE).to_numpy(), device["issue_ns"].fill_null(NONE).to_numpy()
