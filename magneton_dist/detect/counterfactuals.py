"""What the job would take if a rank, a collective or an operation were as fast as the median of its like.

Ranks with the same calls in the same order are alike: the median is that of their own work before each call. A
collective's transfers are alike where operator, group and size are; an operation's kernels where they are the
n-th of their name in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import RecordError
from magneton_dist.records.audit import Counterfactual, StateShare
from magneton_dist.timeline.counterfactual import STILL, Pace, Ran, Schedule, at_pace, own_steps, pace
from magneton_dist.timeline.intervals import before

Floats = NDArray[np.float64]

MOST_RANKS, MOST_COLLECTIVES, MOST_OPERATIONS = 16, 8, 8  # that are tried, those that matter most first
FLOOR_SHARE = 0.005  # of the job's time: less is not told
FIDELITY = 0.05  # the schedule must explain the recorded time as well as this
LEAST_SHARE = 0.02  # of a rank's time in kernels: operations below it are not looked at


@dataclass(frozen=True)
class RankRecorded:
    """What is needed of a rank: its summary, states, calls with their arrivals, activities and steps."""

    summary: RankSummary
    states: pl.DataFrame
    collectives: pl.DataFrame
    arrivals: pl.DataFrame
    activities: pl.DataFrame
    steps: pl.DataFrame


@dataclass(frozen=True)
class _Change:
    what: str
    kind: Literal["ranks", "rank", "collective", "operation"]
    paces: dict[int, Pace]


def counterfactuals(variant: str, ranks: Mapping[int, RankRecorded]) -> tuple[list[Counterfactual], list[str]]:
    """The counterfactuals of a run worth telling, and why there are none."""
    if not ranks or all(not r.states.height for r in ranks.values()):
        return [], []
    try:
        schedule = Schedule([pace(n, r.collectives, r.arrivals, r.states) for n, r in sorted(ranks.items())])
    except RecordError as error:
        return [], [f"what would be saved is not known: {error.what}"]
    paces = {p.rank: p for p in schedule.paces}
    changes = [*_of_ranks(paces, ranks), *_of_collectives(paces), *_of_operations(paces, ranks)]
    ran = schedule.run([{}, *(c.paces for c in changes)])
    recorded = max(_busy_ns(r.states) for r in ranks.values())
    apart = abs(float(ran.length[0]) - recorded) / max(1.0, recorded)
    if apart > FIDELITY:
        return [], [f"what would be saved is not told: run again, the schedule takes {apart:.0%} another time"]
    joules = _joules(ran, [ranks[p.rank].summary for p in schedule.paces])
    told = []
    for n, change in enumerate(changes, start=1):
        saved = float(ran.length[0] - ran.length[n])
        if saved < FLOOR_SHARE * ran.length[0]:
            continue
        told.append(Counterfactual(
            change.what, change.kind, variant, float(ran.length[n]) / 1e9, saved / 1e9,
            saved / float(ran.length[0]), None if joules is None else float(joules[0] - joules[n]),
            "unmeasured" if joules is None else "modelled",
        ))  # fmt: skip
    # to the ns, so that equals come in one order
    return sorted(told, key=lambda c: (c.kind != "ranks", -round(c.saved_s, 9), c.what)), []


def _busy_ns(states: pl.DataFrame) -> float:
    busy = states.filter(pl.col("activity") != "idle")
    return float(busy["end_ns"][-1] - states["start_ns"][0]) if busy.height else 0.0


def _of_ranks(paces: Mapping[int, Pace], ranks: Mapping[int, RankRecorded]) -> list[_Change]:
    """Each of the ranks that others wait for at the median's pace, and all of them."""
    alike: dict[tuple[tuple[str, int], ...], list[Pace]] = {}
    for p in paces.values():
        alike.setdefault(tuple((op, size) for op, _, size in p.label), []).append(p)
    even = {
        p.rank: at_pace(p, np.median([own_steps(q) for q in same], axis=0))
        for same in alike.values() if len(same) > 1
        for p in same
    }  # fmt: skip
    if not even:
        return []
    waits = pl.concat([r.arrivals.select("culprit", "wait_ns") for r in ranks.values()]).drop_nulls()
    late = waits.group_by("culprit").agg(pl.col("wait_ns").sum()).sort("wait_ns", "culprit", descending=[True, False])
    single = [rank for rank in late["culprit"].to_list() if rank in even][:MOST_RANKS]
    return [
        _Change("all ranks alike", "ranks", even),
        *(_Change(f"rank {rank}", "rank", {rank: even[rank]}) for rank in single),
    ]


def _of_collectives(paces: Mapping[int, Pace]) -> list[_Change]:
    """Each operator of a group with the median of its transfers of that size."""
    rows = pl.DataFrame(
        [(p.rank, n, *label, p.transfer[n]) for p in paces.values() for n, label in enumerate(p.label)
         if p.role[n] != "own"],
        schema={"rank": pl.Int64, "call": pl.Int64, "op": pl.String, "group": pl.String, "bytes": pl.Int64,
                "transfer": pl.Float64},
        orient="row",
    )  # fmt: skip
    rows = rows.with_columns(pl.col("transfer").median().over("op", "group", "bytes").alias("median"))
    totals = rows.group_by("op", "group").agg(pl.col("transfer").sum())
    totals = totals.sort("transfer", "op", "group", descending=[True, False, False])
    changes = []
    for op, group, _ in totals.head(MOST_COLLECTIVES).iter_rows():
        changed = {}
        for (rank,), mine in rows.filter((pl.col("op") == op) & (pl.col("group") == group)).group_by("rank"):
            p = paces[int(str(rank))]
            transfer = p.transfer.copy()
            transfer[mine["call"].to_numpy()] = mine["median"].to_numpy()
            changed[p.rank] = replace(p, transfer=transfer)
        changes.append(_Change(f"{op} of group {group}" if group else op, "collective", changed))
    return changes


def _of_operations(paces: Mapping[int, Pace], ranks: Mapping[int, RankRecorded]) -> list[_Change]:
    """The kernels of a name with the median duration of the n-th of that name in a step, over ranks and steps."""
    frames = [_kernels(paces[rank], r).with_columns(pl.lit(rank).alias("rank")) for rank, r in ranks.items()]
    rows = pl.concat(frames)
    counts = rows.group_by("name", "rank", "step").len()
    same = counts.group_by("name").agg(pl.col("len").n_unique().alias("counts"), pl.len().alias("steps"))
    names = same.filter((pl.col("counts") == 1) & (pl.col("steps") > 1))["name"]
    rows = rows.filter(pl.col("name").is_in(names.implode()))
    rows = rows.with_columns((pl.col("ns") - pl.col("ns").median().over("name", "nth")).alias("excess"))
    late = pl.col("excess").clip(lower_bound=0).sum().alias("late")
    sums = rows.group_by("name").agg(late).sort("late", "name", descending=[True, False])
    worst = sums.head(MOST_OPERATIONS)["name"]
    changes = []
    for name in worst.to_list():
        changed = {}
        for (rank,), mine in rows.filter(pl.col("name") == name).group_by("rank"):
            p = paces[int(str(rank))]
            steps = own_steps(p)
            np.subtract.at(steps, mine["segment"].to_numpy(), mine["excess"].to_numpy())
            changed[p.rank] = at_pace(p, np.maximum(steps, 0.0))
        changes.append(_Change(name, "operation", changed))
    return changes


def _kernels(p: Pace, recorded: RankRecorded) -> pl.DataFrame:
    """name, step, nth of the name in its step, ns, segment (between which calls), on the busiest stream."""
    ns = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64).alias("ns")
    every = recorded.activities.lazy().filter(pl.col("kind") == "kernel")
    by_stream = every.group_by("stream").agg(ns.sum()).sort("ns", "stream", descending=[True, False]).collect()
    if by_stream.height:
        every = every.filter(pl.col("stream").eq_missing(by_stream["stream"][0]))
    by_name = every.group_by("name").agg(ns.sum()).collect()  # few names of many kernels
    long = by_name.filter(pl.col("ns") > LEAST_SHARE * pl.col("ns").sum())["name"]
    kernels = every.filter(pl.col("name").is_in(long.implode())).select("name", "start_ns", ns).collect()
    kernels = kernels.sort("start_ns")
    start, steps = kernels["start_ns"].to_numpy(), recorded.steps.sort("start_ns")
    row = np.searchsorted(steps["start_ns"].to_numpy(), start, side="right") - 1
    work = before(p.own, start).astype(np.float64)
    segment = np.searchsorted(p.start, work, side="right")
    kernels = kernels.select("name", "ns").with_columns(
        pl.Series("step", row, pl.Int64), pl.Series("segment", segment, pl.Int64)
    )
    kernels = kernels.filter(pl.Series(row >= 0) & pl.Series(start < recorded.states["end_ns"][-1]))
    return kernels.with_columns(pl.int_range(pl.len()).over("step", "name").alias("nth"))


def _joules(ran: Ran, summaries: Sequence[RankSummary]) -> Floats | None:
    """(changes,) of the job; None where a rank's watts are not known.

    Each rank draws what it drew on average while at work, while standing by its collectives, and while idle.
    """
    total = np.zeros(len(ran.length))
    for n, summary in enumerate(summaries):
        work = _watts([summary], still=False)
        still = _watts([summary], still=True) or _watts(summaries, still=True) or work
        idle = _idle_watts([summary]) or _idle_watts(summaries) or work
        if work is None or still is None or idle is None:
            return None
        done, worked = ran.done[:, n], ran.worked[:, n]
        total += (worked * work + (done - worked) * still + (ran.length - done) * idle) / 1e9
    return total


def _watts(summaries: Sequence[RankSummary], *, still: bool) -> float | None:
    return mean_watts([s for r in summaries for k, s in r.states.items() if (k.partition("/")[2] in STILL) == still])


def _idle_watts(summaries: Sequence[RankSummary]) -> float | None:
    return mean_watts([s for r in summaries for k, s in r.states.items() if k.partition("/")[2] == "idle"])


def mean_watts(shares: Sequence[StateShare]) -> float | None:
    """W: joules over seconds of these shares of states; None where either is not known."""
    joules = [share.j for share in shares if share.j is not None]
    seconds = sum(share.s for share in shares)
    return None if len(joules) < len(shares) or seconds <= 0 else sum(joules) / seconds
