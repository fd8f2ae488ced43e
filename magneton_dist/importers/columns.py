"""Events sorted by what they are, as columns: no event outlives its batch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.importers.events import DEVICE, Args, Event, number
from magneton_dist.importers.fields import MOST_ELEMENTS, NONE, below, first_input, ids, ranks, sm_ppm, times
from magneton_dist.importers.names import Matching, Names

Ints = NDArray[np.int64]
Whole = NDArray[np.signedinteger[Any]]
Bools = NDArray[np.bool_]

# Categories of all generations of the profiler, in lower case; those of devices are in `events`.
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime", "privateuse1_driver")
OPERATORS = ("cpu_op", "operator")
MARKED = ("user_annotation", *OPERATORS)
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl", re.IGNORECASE)
ANNOTATION = re.compile(r"^(ProfilerStep#|Optimizer\.step#|nccl:|gloo:|enumerate\(DataLoader\))")
LOADER = r"^enumerate\(DataLoader\)"
SYNCHRONISES = re.compile(r"^(cuda|hip|musa)(Stream|Device|Event)Synchronize|^cu(Stream|Ctx|Event)Synchronize")
LAUNCHES_KERNEL = re.compile(r"LaunchKernel")
CAPTURES = re.compile(r"BeginCapture")  # what is launched from then on is not run
COMMS = "record_param_comms"
MOST_TIME_US = 4e15  # since 1970: the year 2096
MERGED = 64  # batches; what is freed in many small pieces is not given back to the system
KINDS = ("kernel", "memcpy", "memset", "collective")
NO_ARGS = Args()


class Rows:
    """One kind of event; a part of each column per batch, each in as few bytes as its numbers need."""

    def __init__(self, *columns: str) -> None:
        self._parts: dict[str, list[Whole]] = {name: [] for name in ("start_ns", "end_ns", *columns)}
        self._small = 0  # parts at the end that are still of one batch

    def add(self, *columns: Ints) -> None:
        """The events of one batch: their starts, their ends, and the other columns."""
        if not len(columns[0]):
            return
        self._small += 1
        for parts, column in zip(self._parts.values(), columns, strict=True):
            parts.append(column)
            if self._small == MERGED:
                parts[-MERGED:] = [_narrow(np.concatenate(parts[-MERGED:]))]
        self._small %= MERGED

    def frame(self, base_ns: int) -> pl.DataFrame:
        """All of them, once; times are 64-bit and have `base_ns` added, other columns of any width."""
        whole = {}
        for name, parts in self._parts.items():
            large = len(parts) - self._small
            column = np.concatenate([*parts[:large], _narrow(np.concatenate([*parts[large:], np.empty(0, np.int64)]))])
            parts.clear()  # column by column: there may be gigabytes
            whole[name] = pl.Series(column.astype(np.int64) + base_ns if name.endswith("_ns") else column)
        return pl.DataFrame(whole)


@dataclass
class Comm:
    """What an event tells about its collective."""

    op: str | None
    group: str | None
    ranks: list[int] | None
    size: int | None
    first: int | None
    stride: int | None
    elements: int | None
    dtype: str | None
    seq: int | None
    peer: int | None


class Columns:
    """Collects the events of one trace.

    Args:
        device_only: leave out what tells nothing about the activities of devices: Python's functions, annotations of
            the user, call stacks, what collectives are of, the threads of launches that do not wait.

    Attributes:
        lost: events that were not left out and whose times make no sense, by reason.
        lost_activities: those of them that were on a device.
        unnamed: activities without a name.
        unplaced: activities that do not say on which device, or on which stream, they ran.
        captures: CUDA graphs that were captured.
        events: how many were kept.
    """

    def __init__(self, *, device_only: bool = False) -> None:
        self._device_only = device_only
        self.names, self.threads, self.call_stacks = Names(), Names(), Names()
        self.device = Rows(
            "kind", "name", "stream", "device", "correlation", "external", "comm", "node", "sm_ppm", "called"
        )
        self.launches = Rows("correlation", "thread", "kernel")
        self.syncs = Rows("thread")
        self.ops = Rows("name", "thread", "external", "comm", "stack")
        self.marks = Rows("name", "thread", "comm")
        self.functions = Rows("name", "thread", "python", "parent")
        self.comms: list[Comm] = []
        self.lost: Counter[str] = Counter()
        self.lost_activities = self.unnamed = self.unplaced = self.captures = 0
        self.events = 0
        self._collective, self._annotation = Matching(COLLECTIVE_KERNEL), Matching(ANNOTATION)
        self._synchronises, self._launches_kernel = Matching(SYNCHRONISES), Matching(LAUNCHES_KERNEL)
        self._captures = Matching(CAPTURES)
        self._comms_name = int(self.names.ids([COMMS])[0])

    def add(self, events: Iterable[Event]) -> None:
        """The events of one batch."""
        kinds: defaultdict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X":
                kinds[event.cat].append(event)
        for category, found in kinds.items():
            if category is not None:
                self._add(category.lower(), found)

    def _add(self, category: str, events: list[Event]) -> None:
        if category in DEVICE:
            self._add_activities(DEVICE[category], events)
        elif category in LAUNCHES:
            self._add_launches(events)
        elif category == "python_function" and not self._device_only:
            events, start, end = self._timed(events)
            args = [e.args or NO_ARGS for e in events]
            name = self.names.ids([e.name for e in events])
            python, parents = ids([a.python_id for a in args]), ids([a.python_parent for a in args])
            self.functions.add(start, end, name, self._thread(events), python, parents)
        elif category in (OPERATORS if self._device_only else MARKED):
            self._add_host(category, events)

    def _add_activities(self, kind: str, events: list[Event]) -> None:
        found = len(events)
        events, start, end = self._timed(events)
        self.lost_activities += found - len(events)
        args, names = [e.args or NO_ARGS for e in events], [e.name for e in events]
        name = self.names.ids(names)
        kinds, comm = np.full(len(events), KINDS.index(kind)), np.full(len(events), NONE)
        if kind == "kernel":
            collective = self._collective(name, names)
            kinds[collective] = KINDS.index("collective")
            self._comms_of(args, comm, collective)
        self.unnamed += names.count(None)
        device, stream = ids([a.device for a in args]), ids([a.stream for a in args])
        unplaced = (device == NONE) | (stream == NONE)
        if unplaced.any():
            self.unplaced += int(unplaced.sum())
            device = np.where(device == NONE, ids([e.pid for e in events]), device)
            stream = np.where(stream == NONE, ids([e.tid for e in events]), stream)
        correlation, external = ids([a.correlation for a in args]), ids([a.external_id for a in args])
        held, node, called = sm_ppm(args), ids([a.graph_node for a in args]), ids([a.operator for a in args])
        self.device.add(start, end, kinds, name, stream, device, correlation, external, comm, node, held, called)

    def _add_launches(self, events: list[Event]) -> None:
        events, start, end = self._timed(events)
        names = [e.name for e in events]
        name = self.names.ids(names)
        waits = self._synchronises(name, names)
        if self._device_only:
            thread = np.full(len(events), NONE)
            thread[waits] = self._thread([events[row] for row in np.flatnonzero(waits)])
        else:
            thread = self._thread(events)
        kernel = np.full(len(events), 0)
        if not self._device_only:
            kernel[self._launches_kernel(name, names)] = 1
            self.captures += int(self._captures(name, names).sum())
        self.launches.add(start, end, ids([(e.args or NO_ARGS).correlation for e in events]), thread, kernel)
        self.syncs.add(start[waits], end[waits], thread[waits])

    def _add_host(self, category: str, events: list[Event]) -> None:
        events, start, end = self._timed(events)
        args, names = [e.args or NO_ARGS for e in events], [e.name for e in events]
        name, thread = self.names.ids(names), self._thread(events)
        annotated = self._annotation(name, names)
        comm = np.full(len(events), NONE)
        self._comms_of(args, comm, annotated | (name == self._comms_name))
        self.marks.add(*(c[annotated] for c in (start, end, name, thread, comm)))
        if category in OPERATORS:
            external, stack = ids([a.external_id for a in args]), np.full(len(events), NONE)
            if not self._device_only:
                written = [row for row, a in enumerate(args) if a.call_stack]
                stack[written] = self.call_stacks.ids([args[row].call_stack for row in written])
            columns = (start, end, name, thread, external, comm, stack)
            self.ops.add(*(columns if not annotated.any() else (c[~annotated] for c in columns)))

    def _timed(self, events: list[Event]) -> tuple[list[Event], Ints, Ints]:
        """The events with sound times, their starts and ends in ns; the others are counted."""
        ts, dur = times([e.ts for e in events]), times([e.dur for e in events])
        sound = np.abs(ts) + np.abs(dur) < MOST_TIME_US
        kept = sound & (dur >= 0)
        if not kept.all():
            self.lost["times that are no numbers of microseconds"] += int((~sound).sum())
            self.lost["negative durations"] += int((sound & (dur < 0)).sum())
            self.lost = +self.lost  # without the zeros
            events, ts, dur = [events[row] for row in np.flatnonzero(kept)], ts[kept], dur[kept]
        self.events += len(events)
        # whole and broken part apart: a double holds no ns since 1970
        whole = np.floor(ts)
        start = whole.astype(np.int64) * 1000 + np.rint((ts - whole) * 1000).astype(np.int64)
        return events, start, start + np.rint(dur * 1000).astype(np.int64)

    def _thread(self, events: list[Event]) -> Ints:
        return self.threads.ids(zip([e.pid for e in events], [e.tid for e in events], strict=True))

    def _comms_of(self, args: list[Args], comm: Ints, rows: Bools) -> None:
        """Remember what these rows' `args` tell about collectives."""
        if not self._device_only:
            for row in np.flatnonzero(rows).tolist():
                comm[row] = self._comm(args[row])

    def of_main_thread(self, thread: Ints) -> Bools:
        """Which of these threads are their processes' first ones, by the numbers that Linux gives them."""
        return np.array([pid == tid for pid, tid in self.threads.known()], np.bool_)[thread]

    def _comm(self, args: Args) -> int:
        """Remember what `args` tell about a collective; `NONE` where that is nothing."""
        elements, dtype = below(MOST_ELEMENTS, args.elements), args.dtype if isinstance(args.dtype, str) else None
        if elements is None:
            elements, dtype = first_input(args)
        if args.collective is None and args.group is None and elements is None:
            return NONE
        op = str(args.collective) if args.collective else None
        peer = {"send": args.destination, "recv": args.source}.get(op or "", args.root)
        group = str(args.group) if args.group is not None else None
        size, first, stride = (below(1 << 31, v) for v in (args.group_size, args.first_rank, args.rank_stride))
        members = ranks(args.group_ranks)
        self.comms.append(
            Comm(op, group, members, size, first, stride, elements, dtype, number(args.seq), below(1 << 31, peer))
        )
        return len(self.comms) - 1


def _narrow(column: Whole) -> Whole:
    """The same numbers in the narrowest type that holds them all."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return column.astype(kind)
    return column
