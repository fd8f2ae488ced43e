"""What a job would take if ranks, collectives or operators lasted otherwise: its own schedule, run again.

Every rank goes through its recorded order: work of its own (all time but that before the end of a collective in
which its device did nothing else), the starts of its collectives, and the ends that it stood still for. A
collective ends when the last of those it depends on has come, plus the transfer; what a rank did beside a
collective goes on beside it. Many changes are tried at once: every time is an array over them, the first of
which is the job as it was, so that how well the schedule explains the recorded time is known too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.errors import RecordError
from magneton_dist.timeline.intervals import Ints, before, intervals, subtract
from magneton_dist.timeline.keys import KINDS

Floats = NDArray[np.float64]
STILL = ("wait", "transfer")  # states in which a device only stands by its collectives


@dataclass(frozen=True)
class Pace:
    """One rank's own way through the job. Arrays of calls are in the order of their starts.

    Attributes:
        rank: which one.
        call_id, key: of each call; key -1 where its peers are not known.
        start, end: its own work done, ns, when each call starts and ends.
        held: it stands still until the end of the call.
        transfer: ns of the call after the last arrival.
        role: "all": it depends on all members, "source": on `source` alone, "own": on nobody.
        source: rank, where role is "source".
        label: operator, group and bytes: calls of one label are alike.
        total: its own work until its last activity, ns.
        events: calls and whether they start (else it stood still for their end), as it came to them.
        own: stretches of its own work on its own clock (a normal set of intervals).
    """

    rank: int
    call_id: Ints
    key: Ints
    start: Floats
    end: Floats
    held: NDArray[np.bool_]
    transfer: Floats
    role: list[str]
    source: Ints
    label: list[tuple[str, str, int]]
    total: float
    events: list[tuple[int, bool]] = field(repr=False)
    own: Ints = field(repr=False)


@dataclass(frozen=True)
class Ran:
    """The job under each change: when each rank is done and how long it worked, ns, both (changes, ranks)."""

    done: Floats
    worked: Floats

    @property
    def length(self) -> Floats:
        """ns of the whole job, by change."""
        return np.asarray(self.done.max(axis=1))


def pace(rank: int, collectives: pl.DataFrame, arrivals: pl.DataFrame, states: pl.DataFrame) -> Pace:
    """One rank's pace.

    Args:
        rank: which one.
        collectives: its table.
        arrivals: its rows of `Joined.arrivals`.
        states: its `timeline.states.STATES`, on its own clock.
    """
    calls = collectives.filter(pl.col("end_ns").is_not_null()).join(
        arrivals.select("call_id", "key", "method", "last_rank", "transfer_ns"), on="call_id", how="left"
    )
    window = int(states["start_ns"][0]), int(states["end_ns"][-1])
    calls = calls.with_columns(pl.coalesce("start_ns", "issue_ns").alias("start_ns"))
    calls = calls.filter(pl.col("start_ns").is_between(*window, closed="left") & (pl.col("end_ns") <= window[1]))
    calls = calls.sort("start_ns", "call_id")
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    still = _standing(states, end)
    own = subtract(np.array([window]), still)
    busy = states.filter(pl.col("activity") != "idle")
    last = int(busy["end_ns"][-1]) if busy.height else window[0]
    held = np.isin(end, still[:, 1]) | ((before(still, end) - before(still, end - 1)) > 0)
    kind = calls["op"].str.strip_chars("_").replace_strict(KINDS, default="symmetric")
    known = calls["method"].fill_null("none") != "none"
    root = (calls["root"] == calls["group_rank"]).fill_null(False)
    role = (
        pl.DataFrame({"kind": kind, "known": known, "root": root})
        .select(
            pl.when(~pl.col("known")).then(pl.lit("own"))
            .when((pl.col("kind") == "symmetric") | ((pl.col("kind") == "to_root") & pl.col("root")))
            .then(pl.lit("all"))
            .when((pl.col("kind") == "recv") | ((pl.col("kind") == "from_root") & ~pl.col("root")))
            .then(pl.lit("source"))
            .otherwise(pl.lit("own"))
        ).to_series().to_list()
    )  # fmt: skip
    transfer = calls.select(pl.coalesce("transfer_ns", pl.col("end_ns") - pl.col("start_ns"))).to_series()
    label = calls.select("op", pl.col("group").fill_null(""), pl.col("bytes").fill_null(-1))
    return Pace(
        rank, calls["call_id"].to_numpy(), calls["key"].fill_null(-1).to_numpy(),
        before(own, start).astype(np.float64), before(own, end).astype(np.float64), held,
        transfer.to_numpy().astype(np.float64), role, calls["last_rank"].fill_null(rank).to_numpy().astype(np.int64),
        [(str(op), str(group), int(size)) for op, group, size in label.iter_rows()],
        float(before(own, np.array([last]))[0]), _events(start, end, held), own,
    )  # fmt: skip


def _standing(states: pl.DataFrame, ends: Ints) -> Ints:
    """Stretches of waiting and transfer, up to the last end of a call in them: what follows is the rank's own."""
    rows = states.filter(pl.col("activity").is_in(STILL))
    if not rows.height or not len(ends):
        return np.empty((0, 2), np.int64)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first = np.concatenate([[True], start[1:] != end[:-1]])  # neighbouring states are one stretch
    begin, until = start[first], end[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(end) - 1]])]
    ordered = np.sort(ends)
    at = np.searchsorted(ordered, until, side="right") - 1
    last = np.where(at >= 0, ordered[np.maximum(at, 0)], begin)
    return intervals(begin, np.clip(last, begin, until))


class Schedule:
    """The job's order of events, to be run with other durations.

    Raises:
        RecordError: the order cannot be: a collective waits for one that comes after it.
    """

    def __init__(self, paces: Sequence[Pace]) -> None:
        self.paces = list(paces)
        self._members: dict[int, list[tuple[int, int]]] = {}
        for n, p in enumerate(self.paces):
            for call, key in enumerate(p.key.tolist()):
                if key >= 0:
                    self._members.setdefault(key, []).append((n, call))
        self._order = self._in_order()

    def run(self, changes: Sequence[Mapping[int, Pace]]) -> Ran:
        """Run the job with the paces of some ranks replaced, once for each change.

        Args:
            changes: by rank, paces with the same calls and other durations.
        """
        variants = [[change.get(p.rank, p) for change in changes] for p in self.paces]
        start, end, transfer = (
            [np.stack([getattr(v, name) for v in of_rank]) for of_rank in variants]
            for name in ("start", "end", "transfer")
        )
        total = np.array([[v.total for v in of_rank] for of_rank in variants])
        ranks, n = len(self.paces), len(changes)
        now, done = np.zeros((ranks, n)), np.zeros((ranks, n))  # time, and own work done so far
        came = [np.zeros((p.key.size, n)) for p in self.paces]
        for r, call, opens in self._order:
            work = (start if opens else end)[r][:, call]
            now[r] += np.maximum(work - done[r], 0.0)
            done[r] = np.maximum(done[r], work)
            if opens:
                came[r][call] = now[r]
            else:
                arrival = came[r][call]
                for peer, their in self._awaited(r, call):
                    arrival = np.maximum(arrival, came[peer][their])
                now[r] = np.maximum(now[r], arrival + transfer[r][:, call])
        now += np.maximum(total - done, 0.0)
        return Ran(now.T, total.T)

    def _awaited(self, r: int, call: int) -> list[tuple[int, int]]:
        p = self.paces[r]
        if p.role[call] == "own" or p.key[call] < 0:
            return []
        members = self._members[int(p.key[call])]
        if p.role[call] == "all":
            return members
        return [m for m in members if self.paces[m[0]].rank == p.source[call]]

    def _in_order(self) -> list[tuple[int, int, bool]]:
        """Rank, call, and whether it starts, of every event, such that each comes after those it depends on."""
        at = [0] * len(self.paces)
        started: set[tuple[int, int]] = set()
        waiting: dict[tuple[int, int], list[int]] = {}
        order: list[tuple[int, int, bool]] = []
        todo = list(range(len(self.paces)))
        while todo:
            r = todo.pop()
            while at[r] < len(self.paces[r].events):
                call, opens = self.paces[r].events[at[r]]
                if not opens:
                    lacking = next((m for m in self._awaited(r, call) if m not in started), None)
                    if lacking is not None:
                        waiting.setdefault(lacking, []).append(r)
                        break
                order.append((r, call, opens))
                at[r] += 1
                if opens:
                    started.add((r, call))
                    todo += waiting.pop((r, call), [])
        if any(at[r] < len(p.events) for r, p in enumerate(self.paces)):
            raise RecordError("collectives wait for each other in a circle", where="schedule", do="check the traces")
        return order


def _events(start: Ints, end: Ints, held: NDArray[np.bool_]) -> list[tuple[int, bool]]:
    """Calls, and whether they start: starts, and ends that the rank stood still for, as it came to them."""
    opened = np.arange(start.size)
    closed = np.flatnonzero(held)
    # at one instant: what ends, what starts, what starts and ends
    rank = np.concatenate([np.ones(opened.size), np.where(end[closed] > start[closed], 0, 2)])
    at = np.concatenate([start, end[closed]])
    order = np.lexsort((rank, at))
    calls, opens = np.concatenate([opened, closed])[order], (np.arange(at.size) < opened.size)[order]
    return list(zip(calls.tolist(), opens.tolist(), strict=True))


def own_steps(p: Pace) -> Floats:
    """(calls + 1,) own work before the first call, between the starts of each two, and after the last, ns."""
    return np.diff(np.concatenate([[0.0], p.start, [max([p.total, *p.start[-1:]])]]))


def at_pace(p: Pace, steps: Floats) -> Pace:
    """`p` with other own work between the starts of its calls (see `own_steps`)."""
    edges = np.concatenate([[0.0], np.cumsum(own_steps(p))])
    moved = np.concatenate([[0.0], np.cumsum(steps)])
    end = np.asarray(np.interp(p.end, edges, moved), np.float64)
    return replace(p, start=moved[1:-1], end=end, total=float(moved[-1]))
