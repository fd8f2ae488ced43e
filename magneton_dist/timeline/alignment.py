"""Clocks aligned by the fact that a collective ends together on all its ranks.

Pings bound a host's offset to within half a round trip. The ends of all-reduces and their like agree
within microseconds (NCCL) or a callback's lag (gloo): their residuals give offset and drift, and what is left
of them is the error. Ranks with exact clocks (one host) move together, and the common clock is theirs. Where they are
only assumed to be exact, one of them whose ends are all off by the same is aligned as one without a clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.timeline.clocks import UNKNOWN_ERROR_NS, ClockTable
from magneton_dist.timeline.intervals import Ints

Floats = NDArray[np.float64]

ROUNDS = 32  # groups that share ranks settle one after another
SETTLED_NS = 200
FEW = 8  # with fewer ends than this a rank's clock is not refined: the residual would flatter itself
DRIFT_BINS = 16
MAX_DRIFT = 2e-4  # crystals are good to 1e-4; a steeper line is not the clocks
END_LAG_NS = 50_000  # ends may be this far outside the ping's error before the ping is preferred
OFF_NS = 200_000  # less is not called off
STEADY = 0.1  # of how far a clock is off: what its ends may vary by, and the other ranks' be off themselves


def align(
    table: pl.DataFrame, row: Ints, clocks: ClockTable, *, assumed: bool = False
) -> tuple[ClockTable, list[str]]:
    """Refine clocks by the ends of complete symmetric collectives.

    Args:
        table: matched calls (`keys.match_calls`).
        row: each call's row in `clocks`.
        clocks: as pinged; `UNKNOWN_ERROR_NS` marks one that was not.
        assumed: that clocks are exact is assumed, not known.

    Returns:
        The clocks, and one note per rank whose ends contradict its ping (which is then kept), or its clock that was
        assumed to be exact (which then is not).
    """
    chosen = table.with_row_index("i").filter(_ends_together()).sort("key").select("i", "key", "end_ns")
    if chosen.is_empty():
        return clocks, []
    who, own = row[chosen["i"].to_numpy()], chosen["end_ns"].to_numpy()
    first = np.flatnonzero(np.diff(chosen["key"].to_numpy(), prepend=-1))
    size = np.diff(np.append(first, len(own)))
    first, size = np.repeat(first, size), np.repeat(size, size)

    off = _off(clocks, own, who, np.cumsum(np.diff(first, prepend=0) > 0)) if assumed else {}
    doubted = np.isin(np.arange(len(clocks.ranks)), [*off])
    clocks = replace(clocks, error_ns=np.where(doubted, UNKNOWN_ERROR_NS, clocks.error_ns))
    if not (clocks.error_ns > 0).any():
        return clocks, []

    # Offsets are taken at the middle of each clock's own calls, so that offset and drift do not trade.
    blocks = _blocks(clocks, who)
    at = np.full(len(clocks.ranks), own.min())
    for ranks, calls in blocks:
        if len(calls):
            at[ranks] = (own[calls].min() + own[calls].max()) // 2
    pinged = clocks.offset_ns + clocks.drift * (at - clocks.at_ns)
    given, offset, drift = clocks.drift, pinged.copy(), clocks.drift.copy()
    since, t = (own - own.min()).astype(np.float64), (own - at[who]).astype(np.float64)
    for _ in range(ROUNDS):
        late = _late(since + offset[who] + drift[who] * t, first, size)
        moved = 0.0
        for ranks, calls in blocks:
            shift, slope = _line(t[calls], -late[calls])
            offset[ranks] += shift
            drift[ranks] = np.clip(drift[ranks] + slope, given[ranks] - MAX_DRIFT, given[ranks] + MAX_DRIFT)
            moved = max(moved, abs(shift))
        if moved < SETTLED_NS:
            break
    anchor = blocks[0][0][0]
    shift, slope = offset[anchor] - pinged[anchor], drift[anchor] - clocks.drift[anchor]
    apart = (at - at[anchor]) + (offset - offset[anchor])  # of their middles, on the common clock
    offset, drift = offset - shift - slope * apart, drift - slope
    late = _late(since + offset[who] + drift[who] * t, first, size)
    refined = replace(clocks, offset_ns=np.rint(offset).astype(np.int64), drift=drift, at_ns=at)
    accepted, notes = _accept(clocks, refined, pinged, [(r, np.abs(late[c])) for r, c in blocks[1:]])
    for r, by_ns in off.items():
        aligned = ", and aligned by these ends" if accepted.error_ns[r] != UNKNOWN_ERROR_NS else ""
        notes.append(
            f"rank {clocks.ranks[r]}: the ends of its collectives put its clock {by_ns / 1e6:+,.3f} ms off those of "
            f"the other ranks: it is not trusted{aligned}"
        )
    return accepted, notes


def _off(clocks: ClockTable, own: Ints, who: Ints, key: Ints) -> dict[int, float]:
    """Which of the clocks that are said to be exact are off by the same at all ends, and by how much, ns.

    Args:
        clocks: of all ranks; the result has their rows.
        own: end of each call on its rank's clock, by collective.
        who: row of its rank.
        key: its collective, counted up from 0.
    """
    exact = clocks.error_ns == 0
    # of two nobody can say which of them is off
    chosen = exact[who] & (np.bincount(key, exact[who])[key] > 2)
    if not chosen.any():
        return {}
    own, who, key = own[chosen], who[chosen], key[chosen]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    size = np.diff(np.append(first, len(own)))
    first, size = np.repeat(first, size), np.repeat(size, size)
    late = _late(own - own.min() + clocks.offset_ns[who].astype(np.float64), first, size)
    by, vary = np.full(len(exact), np.nan), np.full(len(exact), np.inf)
    for r in np.unique(who):
        ends = late[who == r]
        if len(ends) >= FEW:
            by[r] = np.median(ends)
            vary[r] = np.percentile(np.abs(ends - by[r]), 90)
    away = np.abs(by)
    steady = (away > OFF_NS) & (vary < STEADY * away)
    others = away[np.isfinite(by) & ~steady]
    if len(others) <= max(1, steady.sum()):
        return {}
    return {int(r): float(by[r]) for r in np.flatnonzero(steady & (away * STEADY > others.max()))}


def _ends_together() -> pl.Expr:
    """Calls of symmetric collectives that all their ranks recorded to the end."""
    whole = (pl.len().over("key") == pl.col("expected")) & pl.col("end_ns").is_not_null().all().over("key")
    return pl.col("key").is_not_null() & (pl.col("kind") == "symmetric") & (pl.col("expected") > 1) & whole


def _blocks(clocks: ClockTable, who: Ints) -> list[tuple[Ints, Ints]]:
    """Ranks that share a clock, with their calls' rows; the first is the anchor, which keeps its clock."""
    order = np.argsort(who, kind="stable")
    calls = np.split(order, np.searchsorted(who[order], np.arange(1, len(clocks.ranks))))
    exact = np.flatnonzero(clocks.error_ns == 0)
    if not len(exact):
        exact = np.array([int(np.argmin(clocks.error_ns))])
    free = np.setdiff1d(np.arange(len(clocks.ranks)), exact)
    shared = np.concatenate([calls[r] for r in exact])
    return [(exact, shared), *((np.array([r]), calls[r]) for r in free)]


def _late(common: Floats, first: Ints, size: Ints) -> Floats:
    """How much later than its collective's median end each call ended, in ns, by its end on the common clock."""
    ordered = common[np.lexsort((common, first))]
    median: Floats = 0.5 * (ordered[first + (size - 1) // 2] + ordered[first + size // 2])
    return common - median


def _line(t: Floats, y: Floats) -> tuple[float, float]:
    """A robust line through y(t), least squares over medians of bins: its value at t = 0 and its slope."""
    if len(t) < FEW:
        return 0.0, 0.0
    bins = np.array_split(np.argsort(t, kind="stable"), min(DRIFT_BINS, len(t) // 4))
    x, m = (np.array([np.median(v[b]) for b in bins]) for v in (t, y))
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * m).sum()) / spread if len(bins) > 2 and spread > 0 else 0.0
    slope = min(max(slope, -MAX_DRIFT), MAX_DRIFT)
    return float(np.median(y - slope * t)), slope


def _accept(
    given: ClockTable, refined: ClockTable, pinged: Floats, left: list[tuple[Ints, Floats]]
) -> tuple[ClockTable, list[str]]:
    """Take a rank's refined clock where it is the more certain one and its ping does not contradict it."""
    taken, notes = np.zeros(len(given.ranks), np.bool_), []
    error = given.error_ns.copy()
    for (r,), residual in left:
        if len(residual) < FEW:
            continue
        spread = round(float(np.percentile(residual, 90)))
        moved = abs(float(refined.offset_ns[r] - pinged[r]))
        if given.error_ns[r] != UNKNOWN_ERROR_NS and moved > given.error_ns[r] + END_LAG_NS:
            notes.append(
                f"rank {given.ranks[r]}: the ends of its collectives put its clock {moved / 1e3:.0f} us away "
                f"from its ping, which is good to {given.error_ns[r] / 1e3:.0f} us; the ping is kept"
            )
        elif spread < given.error_ns[r]:
            taken[r], error[r] = True, spread
    accepted = ClockTable(
        given.ranks,
        np.where(taken, refined.offset_ns, given.offset_ns),
        error,
        np.where(taken, refined.drift, given.drift),
        np.where(taken, refined.at_ns, given.at_ns),
    )
    return accepted, notes
