"""What a job's steps would take if operations lasted otherwise: their order replayed with other durations.

Every worker runs its operations in the recorded order, one after another; messages with no computation between
them run side by side. A communication begins when all its members have come to it, and then takes its transfer
time. Source: the what-if analysis of stragglers by Lin et al. (OSDI 2025); in the ideal job a computation takes the
mean over all workers, micro-batches and steps, a communication the median of its transfer times.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from magneton_dist.errors import RecordError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Step:
    """One step: per worker its slots, each a computation or the communications that run side by side."""

    slots: list[list[list[int]]]
    members: dict[int, list[int]]  # operation -> rows of its communication, for communications only


class Replay:
    """The steps of a job, to be run again.

    Args:
        operations: schema `records.operations.OPERATIONS`, in any order.

    Attributes:
        durations_s: of each operation; of a communication from when its last member has come.
        ideal_s: of each operation where no worker is slower than the others.
    """

    def __init__(self, operations: pl.DataFrame) -> None:
        self.operations = operations.sort("step", "start_ns").with_row_index("row")
        self.durations_s = self._durations()
        self.ideal_s = self._ideal()
        self._steps = [self._step(of_step) for of_step in self.operations.partition_by("step")]

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self._steps)

    def step_seconds(self, durations_s: Floats, steps: Sequence[int] | None = None) -> Floats:
        """Length of each step (of these, by position) with these durations.

        Raises:
            RecordError: the recorded order cannot be: a communication waits for one that comes after it.
        """
        chosen = range(self.steps) if steps is None else steps
        return np.array([_run(self._steps[n], durations_s) for n in chosen])

    def slowdown(self, slow: pl.Expr | None = None, steps: Sequence[int] | None = None) -> float:
        """How much longer steps take than the ideal ones.

        Args:
            slow: which operations keep their own durations, the others being ideal; default: all.
            steps: those to look at, by position; default: all.
        """
        keep = None if slow is None else self.operations.select(slow.fill_null(False)).to_series().to_numpy()
        durations = self.durations_s if keep is None else np.where(keep, self.durations_s, self.ideal_s)
        chosen = slice(None) if steps is None else list(steps)
        return float(self.step_seconds(durations, steps).mean() / self._ideal_steps_s[chosen].mean())

    def explained(self, slow: pl.Expr) -> float:
        """Share of the time above the ideal steps' that goes when these operations become ideal.

        Above 1 or below 0 where the others' would last longer or shorter without them. Of the last stage this is
        the authors' M_S, of the `slowest_workers` their M_W.
        """
        whole = self.slowdown()
        return (whole - self.slowdown(~slow.fill_null(False))) / (whole - 1) if whole > 1 else 0.0

    def last_stage(self) -> pl.Expr:
        """The operations of the last pipeline stage, which also computes the loss."""
        return pl.col("stage") == int(self.operations.select(pl.col("stage").max()).item())

    def slowest_workers(self, share: float = 0.03, steps: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """Data-parallel rank and stage of the slowest workers (by these steps), at least one.

        A worker is as slow as its data-parallel rank or its stage makes the steps alone, whichever is less.
        """
        by_dp, by_stage = (
            {v: self.slowdown(pl.col(column) == v, steps) for v in self.operations[column].unique().sort()}
            for column in ("dp", "stage")
        )
        workers = sorted(self.operations.select("dp", "stage").unique().rows())
        worst = sorted(workers, key=lambda w: min(by_dp[w[0]], by_stage[w[1]]), reverse=True)
        return worst[: math.ceil(len(workers) * share)]

    def of_workers(self, workers: Sequence[tuple[int, int]]) -> pl.Expr:
        """The operations of these workers."""
        return pl.any_horizontal([(pl.col("dp") == dp) & (pl.col("stage") == stage) for dp, stage in workers])

    def without(self, slow: pl.Expr) -> Floats:
        """The operations' durations were these as ideal ones."""
        ideal = self.operations.select(slow.fill_null(False)).to_series().to_numpy()
        return np.where(ideal, self.ideal_s, self.durations_s)

    def seconds_in(self, durations_s: Floats, steps: Sequence[int]) -> tuple[float, float]:
        """What all workers compute and communicate in these steps with these durations."""
        numbers = self.operations["step"].unique().sort().gather(list(steps))
        chosen = self.operations["step"].is_in(numbers.implode()).to_numpy()
        computes = self.operations["call"].is_null().to_numpy()
        return float(durations_s[chosen & computes].sum()), float(durations_s[chosen & ~computes].sum())

    @cached_property
    def _ideal_steps_s(self) -> Floats:
        return self.step_seconds(self.ideal_s)

    def _durations(self) -> Floats:
        together = pl.col("start_ns").max().over("step", "call")
        last = pl.when(pl.col("call").is_null()).then("start_ns").otherwise(together)
        lasted = (pl.col("end_ns") - last).clip(lower_bound=0) / 1e9
        return self.operations.select(lasted).to_series().to_numpy()

    def _ideal(self) -> Floats:
        lasted = self.operations.with_columns(pl.Series("s", self.durations_s))
        usual = pl.when(pl.col("call").is_null()).then(pl.col("s").mean().over("op")).otherwise(
            pl.col("s").median().over("op")
        )  # fmt: skip
        return lasted.select(usual).to_series().to_numpy()

    def _step(self, operations: pl.DataFrame) -> _Step:
        calls: defaultdict[str, list[int]] = defaultdict(list)
        for row, call in operations.select("row", "call").iter_rows():
            if call is not None:
                calls[call].append(row)
        members = {row: rows for rows in calls.values() for row in rows}
        slots = []
        for worker in operations.partition_by("dp", "stage"):
            mine: list[list[int]] = []
            before = False
            for row, message in worker.select("row", "message").iter_rows():
                if message and before:
                    mine[-1].append(row)
                else:
                    mine.append([row])
                before = message
            slots.append(mine)
        return _Step(slots, members)


def _run(step: _Step, durations_s: Floats) -> float:
    """Length of one step."""
    workers = range(len(step.slots))
    now, at = [0.0] * len(workers), [0] * len(workers)
    open_: Counter[int] = Counter()  # communications of a worker's slot that still run
    came: dict[int, tuple[float, int]] = {}  # operation -> when its worker came to it, and which that is
    todo = list(workers)
    while todo:
        w = todo.pop()
        while at[w] < len(step.slots[w]) and not open_[w]:
            slot = step.slots[w][at[w]]
            at[w] += 1
            if slot[0] not in step.members:
                now[w] += durations_s[slot[0]]
                continue
            open_[w] = len(slot)
            begin = now[w]
            for row in slot:
                came[row] = begin, w
                members = step.members[row]
                if all(member in came for member in members):
                    together = max(came[member][0] for member in members)
                    for member in members:
                        peer = came[member][1]
                        now[peer] = max(now[peer], together + durations_s[member])
                        open_[peer] -= 1
                        if not open_[peer] and peer != w:
                            todo.append(peer)
    if any(at[w] < len(step.slots[w]) or open_[w] for w in workers):
        raise RecordError("the operations wait for each other in a circle", where="replay", do="check the timeline")
    return max(now, default=0.0)
