"""`straggler-wait`: ranks wait in collectives for one that keeps coming last.

One late step is no culprit: a rank is named when it is the last of its group clearly more often than chance
would make it (one-sided binomial test against 1 / group size over the collectives that had a wait), in every
repeat, and when the waiting it caused is worth a reader's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from scipy.stats import binomtest

from magneton_dist.detect import monitors
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.detect.source_lines import user_frames
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import Finding, Place

FLOOR_SHARE = 0.02  # of the run's rank-seconds spent waiting for this rank
RECURRENCE = 0.5  # it must be the one waited for in at least this share of the waiting calls
SIGNIFICANCE = 0.001
MOST_PASSED_OVER = 3  # whom others waited for, but not often enough


@dataclass(frozen=True)
class _Blame:
    """Waiting of one repeat for one rank."""

    seconds: float
    calls: int  # calls that waited for it
    waiting_calls: int  # calls of the same groups that waited for anybody
    chance: float  # that it is the last one of its smallest group
    waiters: tuple[int, ...]
    worst: tuple[str, str, int | None, int]  # op, origin, stack id and rank of the group that waited most


def alone(runs: VariantRuns) -> list[Finding]:
    """One finding per rank that its peers keep waiting for."""
    waits = [_waits(run) for run in runs.repeats]
    return [f for rank in runs.ranks if (f := _of_culprit(runs, waits, rank)) is not None]


def passed_over(runs: VariantRuns) -> list[str]:
    """Whom ranks waited for without `alone` naming them, in words with the reason; of one repeat, the worst first."""
    waits = _waits(runs.repeats[0])
    rank_seconds = sum(s.window_s for s in runs.repeats[0].values())
    blames = {rank: blame for rank in runs.ranks if (blame := _blame(waits, rank)) is not None}
    lines = []
    for rank, blame in sorted(blames.items(), key=lambda item: -item[1].seconds)[:MOST_PASSED_OVER]:
        if blame.seconds < FLOOR_SHARE * rank_seconds or _recurs(blame):
            continue
        in_most = blame.calls >= RECURRENCE * blame.waiting_calls
        lines.append(
            f"ranks waited {blame.seconds / rank_seconds:.0%} of their time for rank {rank}, which came last in "
            f"{blame.calls} of {blame.waiting_calls} calls: "
            + ("too few to tell it from chance" if in_most else "it does not keep coming last")
        )
    return lines


def _of_culprit(runs: VariantRuns, waits: Sequence[pl.DataFrame], culprit: int) -> Finding | None:
    blames = [_blame(of_run, culprit) for of_run in waits]
    if not blames or any(b is None for b in blames):
        return None
    known = [b for b in blames if b is not None]
    n = len(known)
    seconds = sum(b.seconds for b in known) / n
    rank_seconds = sum(s.window_s for run in runs.repeats for s in run.values()) / n
    if seconds < FLOOR_SHARE * rank_seconds or not all(map(_recurs, known)):
        return None
    waiters = sorted({r for b in known for r in b.waiters})
    worst = max(known, key=lambda b: b.seconds)
    op, origin, stack_id, worst_rank = worst.worst
    summary = runs.repeats[known.index(worst)][worst_rank]
    stack = summary.stacks.get(stack_id, []) if stack_id is not None else []
    recurrence = sum(b.calls for b in known) / max(1, sum(b.waiting_calls for b in known))
    joules = runs.over_repeats(lambda run: _avoidable(runs, run, culprit))
    said = monitors.of_waits(runs.repeats, waiters, "working/wait")
    who = f"rank {waiters[0]}" if len(waiters) == 1 else f"{len(waiters)} ranks"
    return Finding(
        kind="straggler-wait",
        title=f"{who} waited {seconds:.2f} s for rank {culprit}, last in {recurrence:.0%} of the calls that waited",
        variant=runs.name,
        joules=joules,
        energy_kind=runs.saving_kind,
        share=runs.share_of_run(joules),
        seconds=seconds,
        ranks=[culprit],
        where=Place(what=f"{op} ({origin})", stack=user_frames(stack) or stack[:3]),
        evidence={
            "waiting_ranks": waiters,
            "recurrence": recurrence,
            "calls": round(sum(b.calls for b in known) / n),
            "wait_seconds": seconds,
            "share_of_rank_seconds": seconds / rank_seconds,
            **({"performance_monitors": said} if said else {}),
        },
        fix=(
            f"Find out why rank {culprit} arrives late: more data, a slower device, or a busy host. Even out the "
            "work per step, or let the others do more before they need it (larger buckets, gradient accumulation)."
        ),
        confidence=min(1.0, recurrence),
    )


def _culprit_rows(summary: RankSummary, culprit: int | None) -> pl.DataFrame:
    """Waits for `culprit` (for anybody when None) while this rank still had work."""
    named = pl.col("culprit").is_not_null() if culprit is None else pl.col("culprit") == culprit
    if not summary.waits.height:
        return summary.waits
    return summary.waits.filter(named & (pl.col("phase") == "working"))


def _waits(run: dict[int, RankSummary]) -> pl.DataFrame:
    """Waits of all ranks that still had work, with the rank that waited."""
    of_ranks = [_culprit_rows(s, None).with_columns(waiter=pl.lit(rank)) for rank, s in run.items()]
    return pl.concat(of_ranks).with_columns(pl.col("group").fill_null(""))  # traces may not name it


def _blame(waits: pl.DataFrame, culprit: int) -> _Blame | None:
    """A call is counted once, however many ranks waited in it; only calls of the culprit's groups count."""
    mine = waits.filter(pl.col("culprit") == culprit)
    if not mine.height:
        return None
    groups = waits.filter(pl.col("group").is_in(mine["group"].unique().implode()))
    # of one group and culprit, the rank that waited most often waited in every such call, or nearly
    counts = groups.group_by("group", "culprit", "waiter").agg(pl.col("count").sum())
    calls = counts.group_by("group", "culprit").agg(pl.col("count").max())
    members = pl.concat([groups.select("group", rank="waiter"), groups.select("group", rank="culprit")]).unique()
    smallest = int(members.group_by("group").len()["len"].min())  # type: ignore[arg-type]
    top = mine.sort("exposed_wait_s", "waiter", "op", descending=[True, False, False]).row(0, named=True)
    return _Blame(
        seconds=float(mine["exposed_wait_s"].sum()),
        calls=int(calls.filter(pl.col("culprit") == culprit)["count"].sum()),
        waiting_calls=int(calls["count"].sum()),
        chance=1.0 / max(2, smallest),
        waiters=tuple(sorted(mine["waiter"].unique().to_list())),
        worst=(top["op"], top["origin"], top["stack_id"], top["waiter"]),
    )


def _recurs(blame: _Blame) -> bool:
    if blame.waiting_calls < 1 or blame.calls < RECURRENCE * blame.waiting_calls:
        return False
    test = binomtest(blame.calls, blame.waiting_calls, blame.chance, alternative="greater")
    return bool(test.pvalue < SIGNIFICANCE)


def _avoidable(runs: VariantRuns, run: dict[int, RankSummary], culprit: int) -> float | None:
    """Joules of the waits above a device that idles with its context: the ranks are needed again soon."""
    idle_w = runs.profile.nominal()["context_idle"]
    total = 0.0
    for rank, summary in run.items():
        if rank == culprit:
            continue
        share = summary.states.get("working/wait")
        waited = float(_culprit_rows(summary, culprit)["exposed_wait_s"].sum()) if summary.waits.height else 0.0
        if waited == 0.0:
            continue
        if share is None or share.j is None:
            return None
        total += waited * (share.j / share.s - idle_w) if share.s > 0 else 0.0
    return total
