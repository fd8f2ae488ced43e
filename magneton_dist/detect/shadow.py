"""`shadow-collective`: a rank that has finished keeps taking part in the collectives of its peers.

The signature is Join's origin on a finished rank, not zeros alone: healthy DDP sends all-zero buckets too
(a branch without gradient). Avoidable is what the device drew above what could replace it: an idle device
without a context if the process is released, one that holds its context if it parks.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from magneton_dist.detect import monitors
from magneton_dist.detect.runs import VariantRuns, state_sum
from magneton_dist.detect.source_lines import user_frames, user_line
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import Finding, Interval, Place

ORIGINS = ("join_shadow", "join_control")
SHADOW = ("wait", "transfer", "overlap")
FLOOR_SHARE = 0.005  # of the run's rank-seconds; less is not worth a reader's time


def alone(runs: VariantRuns) -> list[Finding]:
    """One finding per rank that finished early and kept shadowing, over all repeats."""
    return [f for rank in runs.ranks if (f := _of_rank(runs, rank)) is not None]


def _of_rank(runs: VariantRuns, rank: int) -> Finding | None:
    of_rank = [run[rank] for run in runs.repeats]
    calls = pl.concat([_shadow_calls(s) for s in of_rank])
    if not calls["count"].sum() or any(not _shadow_calls(s).height for s in of_rank):
        return None
    n = len(of_rank)
    seconds = sum(state_sum(s, "finished", SHADOW)[0] for s in of_rank) / n
    window = sum(s.window_s for s in of_rank) / n
    if seconds < FLOOR_SHARE * window * len(runs.ranks):
        return None
    shadows = calls.filter(pl.col("origin") == "join_shadow")
    collectives = round(shadows["count"].sum() / n)
    control = round(calls["count"].sum() / n) - collectives
    zero_bytes = round(shadows["zero_bytes"].sum() / n)
    stack = _stack(of_rank)
    line = user_line(stack)
    released = _above(runs, rank, "bare_idle")
    parked = _above(runs, rank, "context_idle")
    at = f" ({line})" if line else ""
    evidence: dict[str, float | int | str | Sequence[int | str]] = {
        "collectives": collectives,
        "control_collectives": control,
        "zero_bytes": zero_bytes,
        "shadow_seconds": seconds,
        "share_of_window": seconds / window,
        "steps_of_this_rank": round(sum(s.steps for s in of_rank) / n),
        "steps_of_the_slowest": round(sum(max(r.steps for r in run.values()) for run in runs.repeats) / n),
    }
    said = monitors.of_waits(runs.repeats, [rank], "finished/wait")
    if said:
        evidence["performance_monitors"] = said
    if released is not None:
        evidence["saved_if_released_j"] = released.mean
    if parked is not None:
        evidence["saved_if_parked_j"] = parked.mean
    return Finding(
        kind="shadow-collective",
        title=(
            f"rank {rank} had finished and shadowed {collectives} collectives of its peers "
            f"for {seconds:.2f} s, sending {_bytes(zero_bytes)} of zeros"
        ),
        variant=runs.name,
        joules=released,
        energy_kind=runs.saving_kind,
        share=runs.share_of_run(released),
        seconds=seconds,
        ranks=[rank],
        where=Place(
            steps=_steps(shadows),
            what=f"{', '.join(sorted(set(shadows['op'].to_list())))} inside Join, after this rank's last step",
            stack=user_frames(stack) or stack[:3],
        ),
        evidence=evidence,
        fix=(
            f"Use `magneton_dist.sync.EarlyExit(model, on_finish=\"release\")` in place of Join([model]){at}: a "
            "finished rank leaves instead of reducing zeros, and the results stay equal. Or give the ranks equal work."
        ),
    )


def _shadow_calls(summary: RankSummary) -> pl.DataFrame:
    waits = summary.waits
    return waits.filter((pl.col("phase") == "finished") & pl.col("origin").is_in(ORIGINS) & (pl.col("count") > 0))


def _stack(of_rank: list[RankSummary]) -> list[str]:
    for summary in of_rank:
        calls = _shadow_calls(summary).filter(pl.col("origin") == "join_shadow").sort("count", descending=True)
        for stack_id in calls["stack_id"].drop_nulls().to_list():
            if stack_id in summary.stacks:
                return summary.stacks[stack_id]
    return []


def _above(runs: VariantRuns, rank: int, idle: str) -> Interval | None:
    """Joules of the shadow above what the same time would cost in state `idle` of the profile."""
    idle_w = runs.profile.nominal()[idle]

    def avoidable(run: dict[int, RankSummary]) -> float | None:
        seconds, joules = state_sum(run[rank], "finished", SHADOW)
        return None if joules is None else joules - seconds * idle_w

    return runs.over_repeats(avoidable)


def _steps(calls: pl.DataFrame) -> tuple[int, int] | None:
    first, last = calls["first_step"].min(), calls["last_step"].max()
    return (int(first), int(last)) if first is not None and last is not None else None  # type: ignore[arg-type]


def _bytes(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
