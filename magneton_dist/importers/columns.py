"""Events sorted by what they are, as columns: no event outlives its batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.importers.events import Args, Event, number

Ints = NDArray[np.int64]

# Categories of all generations of the profiler, in lower case.
DEVICE = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "memcpy": "memcpy", "memset": "memset",
}  # fmt: skip
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime", "privateuse1_driver")
OPERATORS = ("cpu_op", "operator")
MARKED = ("user_annotation", *OPERATORS)
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl", re.IGNORECASE)
ANNOTATION = re.compile(r"^(ProfilerStep#|Optimizer\.step#|nccl:|gloo:)")
COMMS = "record_param_comms"
MOST_NAME = 4096  # characters of a name that are kept
NONE = -1  # of an id that an event does not give; ids are not negative



class Names:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self._ids: dict[object, int] = {}

    def __call__(self, text: object) -> int:
        """The number of `text`."""
        return self._ids.setdefault(text, len(self._ids))

    def texts(self) -> list[str]:
        """The texts in order of their numbers."""
        return [str(t)[:MOST_NAME] for t in self._ids]

    def column(self, ids: pl.Expr) -> pl.Expr:
        """The texts of a column of these numbers."""
        texts = pl.Series(self.texts(), dtype=pl.String)
        return ids.replace_strict(pl.Series(range(len(texts)), dtype=pl.Int64), texts, return_dtype=pl.String)


@dataclass
class Rows:
    """One kind of event: a batch as lists, earlier batches as arrays."""

    columns: tuple[str, ...]
    ts: list[float] = field(default_factory=list)
    dur: list[float] = field(default_factory=list)
    ids: list[tuple[int, ...]] = field(default_factory=list)
    done: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)

    def add(self, ts: float, dur: float, *ids: int) -> None:
        """One event."""
        self.ts.append(ts)
        self.dur.append(dur)
        self.ids.append(ids)

    def flush(self) -> None:
        """Turn the batch into arrays."""
        if self.ts:
            start, end = _span_ns(self.ts, self.dur)
            self.done.append((start, end, np.array(self.ids, np.int64).reshape(len(self.ts), -1)))
            self.ts, self.dur, self.ids = [], [], []

    def frame(self, base_ns: int) -> pl.DataFrame:
        """All of them: start_ns, end_ns and `columns`."""
        parts = self.done or [(np.empty(0, np.int64),) * 2 + (np.empty((0, len(self.columns)), np.int64),)]
        start, end, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.done = []
        named = {name: ids[:, n] for n, name in enumerate(self.columns)}
        return pl.DataFrame({"start_ns": start + base_ns, "end_ns": end + base_ns, **named})


def _span_ns(ts: list[float], dur: list[float]) -> tuple[Ints, Ints]:
    """Start and end in ns of times in µs; whole and broken part apart, since a double holds no ns since 1970."""
    at = np.array(ts, np.float64)
    whole = np.floor(at)
    start = whole.astype(np.int64) * 1000 + np.rint((at - whole) * 1000).astype(np.int64)
    return start, start + np.rint(np.array(dur, np.float64) * 1000).astype(np.int64)


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

    Attributes:
        lost: events whose times make no sense, by reason.
        lost_activities: those of them that were on a device.
        events: how many were kept.
    """

    def __init__(self) -> None:
        self.names, self.threads = Names(), Names()
        self.device = Rows(("kind", "name", "stream", "device", "correlation", "external", "comm"))
        self.launches = Rows(("correlation", "thread", "external"))
        self.ops = Rows(("name", "thread", "external", "comm", "stack"))
        self.marks = Rows(("name", "thread", "comm"))
        self.functions = Rows(("name", "thread", "python", "parent"))
        self.call_stacks = Names()
        self.comms: list[Comm] = []
        self.lost: Counter[str] = Counter()
        self.lost_activities = 0
        self.events = 0

    def add(self, events: Iterable[Event]) -> None:
        """The events of one batch."""
        for event in events:
            if event.ph == "X":
                self._add(event)
        for rows in (self.device, self.launches, self.ops, self.marks, self.functions):
            rows.flush()

    def _add(self, event: Event) -> None:
        category = (event.cat or "").lower()
        on_device = DEVICE.get(category)
        wanted = on_device or category in LAUNCHES or category in MARKED or category == "python_function"
        if not wanted:
            return
        ts, dur = event.ts, event.dur if event.dur is not None else 0.0
        if not isinstance(ts, (int, float)) or not isinstance(dur, (int, float)) or not abs(ts) + abs(dur) < 4e15:
            return self._lose("times that are no numbers of microseconds", on_device)
        if dur < 0:
            return self._lose("negative durations", on_device)
        self.events += 1
        args = event.args or Args()
        name = event.name if isinstance(event.name, str) else str(event.name)
        if on_device:
            self._add_activity(on_device, name, ts, dur, event, args)
        elif category in LAUNCHES:
            if (correlation := number(args.correlation)) is not None:
                self.launches.add(ts, dur, correlation, self._thread(event), _id(args.external_id))
        elif category == "python_function":
            ids = _id(args.python_id), _id(args.python_parent)
            self.functions.add(ts, dur, self.names(name), self._thread(event), *ids)
        else:
            self._add_host(category, name, ts, dur, event, args)
        return None

    def _add_activity(self, kind: str, name: str, ts: float, dur: float, event: Event, args: Args) -> None:
        comm = NONE
        if kind == "kernel" and COLLECTIVE_KERNEL.search(name):
            kind, comm = "collective", self._comm(args)
        device, stream = _id(args.device), _id(args.stream)
        ids = (
            KINDS.index(kind), self.names(name), stream if stream != NONE else _id(event.tid),
            device if device != NONE else _id(event.pid), _id(args.correlation), _id(args.external_id), comm,
        )  # fmt: skip
        self.device.add(ts, dur, *ids)

    def _add_host(self, category: str, name: str, ts: float, dur: float, event: Event, args: Args) -> None:
        annotated = ANNOTATION.match(name)
        if annotated:
            comm = self._comm(args) if name[:5] in ("nccl:", "gloo:") else NONE
            self.marks.add(ts, dur, self.names(name), self._thread(event), comm)
        elif category in OPERATORS:
            comm = self._comm(args) if name == COMMS else NONE
            stack = self.call_stacks(args.call_stack) if args.call_stack else NONE
            self.ops.add(ts, dur, self.names(name), self._thread(event), _id(args.external_id), comm, stack)

    def _lose(self, reason: str, on_device: str | None) -> None:
        self.lost[reason] += 1
        self.lost_activities += on_device is not None

    def _thread(self, event: Event) -> int:
        return self.threads((event.pid, event.tid))

    def _comm(self, args: Args) -> int:
        """Remember what `args` tell about a collective; `NONE` where that is nothing."""
        elements, dtype = number(args.elements), args.dtype if isinstance(args.dtype, str) else None
        if elements is None:
            elements, dtype = _first_input(args)
        if args.collective is None and args.group is None and elements is None:
            return NONE
        op = str(args.collective) if args.collective else None
        peer = {"send": args.destination, "recv": args.source}.get(op or "", args.root)
        group = str(args.group) if args.group is not None else None
        size, first, stride = (number(v) for v in (args.group_size, args.first_rank, args.rank_stride))
        ranks = _ranks(args.group_ranks)
        self.comms.append(
            Comm(op, group, ranks, size, first, stride, elements, dtype, number(args.seq), number(peer))
        )
        return len(self.comms) - 1


KINDS = ("kernel", "memcpy", "memset", "collective")


def _id(value: object) -> int:
    found = number(value)
    return NONE if found is None or found < 0 else found


def _ranks(value: str | list[int | float | str | None] | None) -> list[int] | None:
    """Ranks of a group; None where the list is not there or was shortened ("[0, 1, ..., 7]")."""
    if isinstance(value, str):
        if "..." in value:
            return None
        value = [*re.findall(r"\d+", value)]
    ranks = [number(v) for v in value or ()]
    return [r for r in ranks if r is not None] or None


def _first_input(args: Args) -> tuple[int | None, str | None]:
    """Elements and type of the first tensor of an annotation (`Input Dims`, `Input type`)."""
    try:
        dims = msgspec.json.decode(args.dims, type=list[list[int]]) if args.dims else []
        types = msgspec.json.decode(args.types, type=list[str]) if args.types else []
    except msgspec.MsgspecError:
        return None, None
    if not dims or not dims[0] or not types or not types[0]:
        return None, None
    elements = 1
    for length in dims[0]:
        elements *= length
    return (elements if elements < 1 << 62 else None), types[0]
