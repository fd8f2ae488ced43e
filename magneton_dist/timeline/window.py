"""The audited window of a run, and where each rank's work ends in it.

It opens when the last rank has left its warm-up and traced steps behind, and closes with the last step, or
the last collective that an uneven-input protocol still needed, of any rank. All ranks share the window: what
a finished rank does while its peers go on is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.timeline.clocks import RankClock

# Origins of collectives that only keep an uneven-input protocol going.
PROTOCOL = ("join_control", "join_shadow", "join_final", "sync_control")
# A rank has finished early when another goes on for more than this part of that one's last step.
EARLY = 0.5


@dataclass(frozen=True)
class Life:
    """What the window needs of one rank; times on its own clock, None where there was no such thing."""

    rank: int
    first_ns: int  # of anything recorded
    last_ns: int
    ready_ns: int | None  # end of the warm-up and traced steps at the beginning
    step_start_ns: int | None  # of the last step
    step_end_ns: int | None
    protocol_end_ns: int | None  # of Join's and the early exit's collectives
    exit_ns: int | None  # the process said that it leaves


@dataclass(frozen=True)
class Window:
    """The audited window on one rank's own clock; `finished_ns` and `released_ns` lie inside it."""

    start_ns: int
    end_ns: int
    finished_ns: int | None = None  # this rank has no more work while others have
    released_ns: int | None = None  # its process has left

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def own_life(tables: Mapping[str, pl.DataFrame], rank: int) -> Life:
    """Condense a rank's steps, collectives, stamps and marks.

    Raises:
        RecordError: nothing with a time was recorded.
    """
    steps, calls, marks = tables["steps"].sort("step"), tables["collectives"], tables["marks"]
    spans = [table[name] for table in (steps, calls) for name in ("start_ns", "end_ns")]
    times = pl.concat([*spans, tables["stamps"]["t_ns"], marks["t_ns"]])
    first, last = _first(times), _last(times)
    if first is None or last is None:
        where, do = f"rank {rank}", "check that the script runs under the launched interpreter"
        raise RecordError("nothing was recorded", where=where, do=do)
    unmeasured = steps.filter(pl.col("kind").is_in(["warm-up", "traced"]).cast(pl.Int8).cum_min() == 1)
    protocol = calls.filter(pl.col("origin").is_in(PROTOCOL))
    exits = marks.filter(pl.col("name") == "exit")["t_ns"]
    return Life(
        rank=rank,
        first_ns=first,
        last_ns=last,
        ready_ns=_last(unmeasured["end_ns"]),
        step_start_ns=_last(steps["start_ns"]),
        step_end_ns=_last(steps["end_ns"]),
        protocol_end_ns=_last(protocol["end_ns"]),
        exit_ns=_last(exits),
    )


def _first(column: pl.Series) -> int | None:
    value = column.min()
    return None if value is None else int(value)  # type: ignore[arg-type]


def _last(column: pl.Series) -> int | None:
    value = column.max()
    return None if value is None else int(value)  # type: ignore[arg-type]


def audited_windows(
    lives: Mapping[int, Life], clocks: Mapping[int, RankClock], exits: Mapping[int, int] | None = None
) -> tuple[dict[int, Window], list[str]]:
    """The run's window on every rank's own clock.

    Args:
        lives: one per rank.
        clocks: `Joined.clocks`; a rank without one is taken to share the common clock.
        exits: when the rank's process was seen to be gone, on its host's clock; goes before its exit mark.

    Returns:
        The window of each rank, and notes on what could not be done as documented.
    """
    clock = {rank: clocks.get(rank, RankClock()) for rank in lives}
    notes: list[str] = []
    if not lives:
        return {}, notes

    def common(name: str) -> dict[int, int]:
        values = ((rank, getattr(life, name)) for rank, life in lives.items())
        return {rank: clock[rank].to_common(t) for rank, t in values if t is not None}

    first, step_start, step_end = common("first_ns"), common("step_start_ns"), common("step_end_ns")
    ends = [*step_end.values(), *common("protocol_end_ns").values()]
    if not step_end:
        notes.append("no step was seen: the window is everything recorded; magneton_dist.step() marks steps")
        ends = list(common("last_ns").values())
    end = max(ends)
    start = max(common("ready_ns").values(), default=min(first.values()))
    if start >= end:
        notes.append("all steps are warm-up or traced steps: they are audited for want of others")
        start = min(first.values())
    finished = _finished(lives, step_start, step_end, start)

    windows = {}
    for rank, life in lives.items():
        own = clock[rank].to_own
        gone = (exits or {}).get(rank, life.exit_ns)
        edges = own(start), own(end)
        windows[rank] = Window(
            *edges,
            _inside(edges, own(finished[rank])) if rank in finished else None,
            _inside(edges, gone) if gone is not None else None,
        )
    return windows, notes


def _finished(
    lives: Mapping[int, Life], step_start: dict[int, int], step_end: dict[int, int], start: int
) -> dict[int, int]:
    """When each rank that finished early did so; all times on the common clock."""
    if not step_end:
        return {}
    slowest = max(step_end, key=lambda rank: step_end[rank])
    early = step_end[slowest] - EARLY * (step_end[slowest] - step_start[slowest])
    finished = {rank: end for rank, end in step_end.items() if end < early}
    # A rank that never had a step but takes part in the protocol had no batch at all.
    none = [r for r, life in lives.items() if r not in step_end and life.protocol_end_ns is not None]
    return finished | dict.fromkeys(none, start)


def _inside(edges: tuple[int, int], t_ns: int) -> int | None:
    """`t_ns` moved to the window's start if before it; None at or after its end."""
    return None if t_ns >= edges[1] else max(t_ns, edges[0])
