"""The cross-rank join of collectives: who arrived last, and how long each rank waited for it.

Sources: NCCL's `waitPeer` spins until its peers have entered, so a collective's time on one rank splits at
the last peer's start into waiting and transfer. Where the ends agree over the ranks, the wait is a rank's
duration minus the shortest duration and needs no clocks; elsewhere it is the last start minus the own start
on aligned clocks, with the clocks' error. Receivers of a broadcast or scatter wait for its root, the root of
a reduce or gather for the last sender, a receive for its send; the other side of these does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from magneton_dist.records.manifest import Clock
from magneton_dist.records.schema import BOOL, COLLECTIVES, F64, I32, I64, STR, Column, Table
from magneton_dist.timeline.alignment import align
from magneton_dist.timeline.clocks import UNKNOWN_ERROR_NS, ClockTable, RankClock
from magneton_dist.timeline.keys import CONFIDENCE, GROUP, match_calls

# Ends closer than this (besides the clocks' error) agree: CUPTI's ends differ by 1-7 us, gloo's by its
# callbacks' lag of 16-160 us.
END_TOLERANCE_NS = 50_000
# A group in which more of the collectives than this end before their last rank starts is paired wrongly.
IMPOSSIBLE_SHARE = 0.1

SLIM = (
    "call_id", "group", "group_size", "group_rank", "seq", "op", "origin", "bytes", "zero_payload", "root",
    "issue_ns", "start_ns", "end_ns",
)  # fmt: skip

CALLS = Table("calls", "one collective call, as sent to the join", {
    "rank": Column(I32, "", "global rank"),
    **{name: COLLECTIVES.columns[name] for name in SLIM},
})

ARRIVALS = Table("arrivals", "one collective call of one rank, joined with its peers' calls", {
    "rank": Column(I32, "", "global rank"),
    "call_id": Column(I64, "", "the rank's call"),
    "key": Column(I64, "", "equal for the calls of one collective; null when it was not matched"),
    "matched": Column(STR, "", "sequence, order, shape, pair or none (see timeline.keys)"),
    "confidence": Column(F64, "", "0 to 1: trust in the match"),
    "arrived": Column(I32, "", "ranks seen in this collective"),
    "expected": Column(I32, "", "ranks that belong to it"),
    "method": Column(STR, "", "durations, clocks or none"),
    "reason": Column(STR, "", "why the method is none, else null"),
    "last_rank": Column(I32, "", "global rank that this one depends on and that arrived last"),
    "culprit": Column(I32, "", "last_rank where the wait exceeds twice its error, else null"),
    "last_arrival_ns": Column(I64, "ns", "its arrival, on this rank's own clock"),
    "wait_ns": Column(I64, "ns", "this rank's time in the call before the last arrival"),
    "transfer_ns": Column(I64, "ns", "this rank's time in the call after it; null while in flight"),
    "wait_error_ns": Column(I64, "ns", "bound on the error of wait_ns"),
    "shadow_peer": Column(BOOL, "", "a member of this collective is a Join shadow"),
})

GROUPS = Table("groups", "one process group in the join", {
    "group": Column(STR, "", "process group name"),
    "group_size": Column(I32, "", "ranks in the group"),
    "ranks": Column(I32, "", "ranks seen"),
    "matched": Column(STR, "", "how calls were matched; several methods joined by +"),
    "confidence": Column(F64, "", "mean trust in the matches"),
    "calls": Column(I64, "", "calls of all ranks"),
    "refused": Column(I64, "", "calls without a wait"),
    "reason": Column(STR, "", "the commonest reason for refusing, else null"),
})


def own_arrivals(collectives: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The part of a rank's `collectives` table that the join needs (schema `CALLS`)."""
    slim = collectives.select(pl.lit(rank, pl.Int32).alias("rank"), *SLIM)
    return slim.with_columns(pl.coalesce("start_ns", "issue_ns").alias("start_ns"))


@dataclass(frozen=True)
class Joined:
    """All ranks' collectives after the join."""

    arrivals: pl.DataFrame  # ARRIVALS, sorted by rank and call_id
    groups: pl.DataFrame  # GROUPS
    clocks: dict[int, RankClock]  # of every rank given, aligned by ends where the pings left an error
    notes: list[str] = field(default_factory=list)

    def of(self, rank: int) -> pl.DataFrame:
        """The rows of one rank."""
        return self.arrivals.filter(pl.col("rank") == rank)


def join_arrivals(
    calls: Iterable[pl.DataFrame], clocks: Mapping[int, Clock | RankClock], *, assumed: bool = False
) -> Joined:
    """Join the calls of all ranks.

    Args:
        calls: one `own_arrivals` table per rank; a rank that is missing makes its collectives `none`.
        clocks: each rank's clock against the common one. Ranks of one host share it with error 0; a rank
            without an entry is aligned by the ends of its collectives alone.
        assumed: that clocks are exact is assumed, not known (see `align`).

    Returns:
        Waits with their errors; refused where ranks are missing, calls do not pair or end impossibly early.
    """
    tables = list(calls)
    table = match_calls(pl.concat(tables) if tables else CALLS.empty())
    seen = table["rank"].cast(pl.Int64).to_numpy()
    ranks = np.union1d(seen, np.array(list(clocks), np.int64))
    row = np.searchsorted(ranks, seen)
    aligned, notes = align(table, row, ClockTable.of(ranks, clocks), assumed=assumed)
    table = _on_common_clock(table, row, aligned)
    table = table.join(_collectives(table), on="key", how="left")
    table = _waits(_refusals(_targets(table)))
    groups = _groups(table)
    arrivals = table.select(*ARRIVALS.schema).cast(pl.Schema(ARRIVALS.schema))
    return Joined(arrivals, groups, aligned.clocks(), notes + _notes(groups))


def _on_common_clock(table: pl.DataFrame, row: np.ndarray, clocks: ClockTable) -> pl.DataFrame:
    """Add start and end on the common clock, and the clock's error."""
    start, end = table["start_ns"].to_numpy(), table["end_ns"].fill_null(0).to_numpy()
    return table.with_columns(
        pl.Series("start", start + clocks.shift_ns(row, start), pl.Int64),
        # keeps the null of a pending call
        (pl.col("end_ns") + pl.Series(clocks.shift_ns(row, end), dtype=pl.Int64)).alias("end"),
        pl.Series("error", clocks.error_ns[row], pl.Int64),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
    )


def _collectives(table: pl.DataFrame) -> pl.DataFrame:
    """One row per key: who arrived, the last start, the root's or sender's, how far the ends agree."""
    roots = pl.col("kind").is_in(["from_root", "to_root"]) & (pl.col("root") == pl.col("group_rank"))
    root, sender = roots.fill_null(False), pl.col("kind") == "send"
    source = root | sender
    return (
        table.filter(pl.col("key").is_not_null())
        .group_by("key")
        .agg(
            pl.col("rank").n_unique().cast(pl.Int32).alias("arrived"),
            pl.col("start").max().alias("all_start"),
            pl.col("rank").get(pl.col("start").arg_max()).alias("all_rank"),
            pl.col("error").get(pl.col("start").arg_max()).alias("all_error"),
            pl.col("start").filter(source).first().alias("source_start"),
            pl.col("rank").filter(source).first().alias("source_rank"),
            pl.col("error").filter(source).first().alias("source_error"),
            pl.col("end").is_null().any().alias("pending"),
            (pl.col("end").max() - pl.col("end").min()).alias("end_spread"),
            pl.col("duration").min().alias("shortest"),
            pl.col("rank").get(pl.col("duration").arg_min()).alias("shortest_rank"),
            (pl.col("origin") == "join_shadow").any().alias("shadow_peer"),
        )
    )


def _targets(table: pl.DataFrame) -> pl.DataFrame:
    """Add whom each call waits for (`last_start`, `last_rank`), within `margin` ns, or why not (`reason`)."""
    is_root = (pl.col("root") == pl.col("group_rank")).fill_null(False)
    for_all = (pl.col("kind") == "symmetric") | ((pl.col("kind") == "to_root") & is_root)
    for_source = (pl.col("kind") == "recv") | ((pl.col("kind") == "from_root") & ~is_root)

    def target(everyone: str | pl.Expr, source: str | pl.Expr, nobody: str | pl.Expr) -> pl.Expr:
        return pl.when(for_all).then(everyone).when(for_source).then(source).otherwise(nobody)

    to_all, to_source = pl.col("error") + pl.col("all_error"), pl.col("error") + pl.col("source_error")
    return table.with_columns(
        target("all_start", "source_start", "start").alias("last_start"),
        target("all_rank", "source_rank", "rank").alias("last_rank"),
        target(to_all, to_source, pl.lit(0)).alias("margin"),
        pl.when(pl.col("unmatched").is_not_null())
        .then("unmatched")
        .when(pl.col("expected").is_null())
        .then(pl.lit("the size of its group is not known"))
        .when(for_all & (pl.col("arrived") < pl.col("expected")))
        .then(pl.format("only {} of {} ranks recorded the call", "arrived", "expected"))
        .when(for_source & pl.col("source_start").is_null())
        .then(pl.lit("the root or sender is not in the record"))
        .alias("reason"),
        ((pl.col("kind") == "symmetric") & ~pl.col("pending") & (pl.col("end_spread") <= END_TOLERANCE_NS))
        .fill_null(False)
        .alias("ends_agree"),
    )


def _refusals(table: pl.DataFrame) -> pl.DataFrame:
    """Refuse what the clocks cannot tell, and what cannot have happened, which is a sign of wrong pairs."""
    joined = pl.col("reason").is_null()
    ahead = pl.col("last_start") - pl.col("end")
    early = joined & (ahead > pl.col("margin") + END_TOLERANCE_NS).fill_null(False)
    table = table.with_columns((joined & early.any().over("key")).alias("early"))
    # A few impossible ends refuse their own collective, many their whole group.
    share = pl.col("early").sum().over(GROUP) / joined.sum().over(GROUP)
    unknown = pl.col("margin") >= UNKNOWN_ERROR_NS
    vague = ~pl.col("ends_agree") & (pl.col("margin") > pl.col("duration"))
    # Of calls whose group was not recorded only their order is known; that their ends agree is what proves it.
    apart = pl.col("end_spread") > END_TOLERANCE_NS + 2 * pl.col("margin")
    unproven = pl.col("group").is_null() & (pl.col("kind") == "symmetric") & apart
    return table.with_columns(
        pl.when(~joined)
        .then("reason")
        .when(share > IMPOSSIBLE_SHARE)
        .then(pl.lit("the calls do not line up: they end before their last rank starts"))
        .when("early")
        .then(pl.lit("it ends before its last rank starts"))
        .when(unknown)
        .then(pl.lit("the ranks' clocks are unknown"))
        .when(vague)
        .then(pl.lit("the ranks' clocks are less certain than the call is long"))
        .when(unproven.fill_null(False))
        .then(pl.lit("its group is not recorded, and the ends of what would be its calls differ"))
        .alias("reason"),
        share.fill_nan(0.0).alias("impossible"),
    )


def _waits(table: pl.DataFrame) -> pl.DataFrame:
    """Add method, wait, transfer, error and culprit."""
    known = pl.col("reason").is_null()
    durations, clocks = known & pl.col("ends_agree"), known & ~pl.col("ends_agree")

    def by_method(first: str | pl.Expr, second: str | pl.Expr, none: pl.Expr | None = None) -> pl.Expr:
        return pl.when(durations).then(first).when(clocks).then(second).otherwise(none)

    lateness = pl.col("last_start") - pl.col("start")
    spared = pl.col("duration") - pl.col("shortest")
    trust = pl.col("matched").replace_strict(CONFIDENCE, return_dtype=pl.Float64)
    table = table.with_columns(
        by_method(pl.lit("durations"), pl.lit("clocks"), pl.lit("none")).alias("method"),
        by_method(spared, pl.min_horizontal(lateness.clip(lower_bound=0), "duration")).alias("wait_ns"),
        by_method("shortest_rank", "last_rank").alias("last_rank"),
        by_method("end_spread", "margin").alias("wait_error_ns"),
        # On the own clock the last arrival is the own start plus the lateness: nothing to convert.
        (pl.col("start_ns") + by_method(spared, lateness)).alias("last_arrival_ns"),
        pl.col("arrived").fill_null(1),
        pl.col("shadow_peer").fill_null(pl.col("origin") == "join_shadow"),
        (trust * (1.0 - pl.col("impossible"))).alias("confidence"),
    )
    blamed = (pl.col("wait_ns") > 2 * pl.col("wait_error_ns")) & (pl.col("last_rank") != pl.col("rank"))
    return table.with_columns(
        (pl.col("duration") - pl.col("wait_ns")).alias("transfer_ns"),
        pl.when(blamed).then("last_rank").alias("culprit"),
    )


def _groups(table: pl.DataFrame) -> pl.DataFrame:
    """Summarise the join per group."""
    return (
        table.group_by(GROUP, maintain_order=True)
        .agg(
            pl.col("rank").n_unique().cast(pl.Int32).alias("ranks"),
            pl.col("matched").unique().sort().str.join("+").alias("matched"),
            pl.col("confidence").mean(),
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("reason").is_not_null().sum().cast(pl.Int64).alias("refused"),
            pl.col("reason").drop_nulls().mode().sort().first().alias("reason"),
        )
        .select(*GROUPS.schema)
        .cast(pl.Schema(GROUPS.schema))
    )


def _notes(groups: pl.DataFrame) -> list[str]:
    """How calls were matched where not by their sequence, and why some have no wait: a line for all groups alike."""
    matched: dict[str, list[dict[str, Any]]] = {}
    refused: dict[str, list[dict[str, Any]]] = {}
    for g in groups.iter_rows(named=True):
        if g["matched"] not in ("sequence", "none"):
            matched.setdefault(f"calls matched by {g['matched']}, confidence {g['confidence']:.2f}", []).append(g)
        if g["refused"]:
            refused.setdefault(g["reason"], []).append(g)
    notes = [f"{_named(alike)}: {how}" for how, alike in matched.items()]
    for reason, alike in refused.items():
        lost, calls = (sum(g[count] for g in alike) for count in ("refused", "calls"))
        notes.append(f"{_named(alike)}: no wait for {lost:,} of {calls:,} calls: {reason}")
    return notes


def _named(groups: Sequence[dict[str, Any]]) -> str:
    """The first of these groups, and how many more there are."""
    first = groups[0]
    group = "calls without a group" if first["group"] is None else f"group {first['group']!r}"
    more = f" and {len(groups) - 1:,} more" if len(groups) > 1 else ""
    return f"{group} ({first['ranks']} of {first['group_size']} ranks){more}"
