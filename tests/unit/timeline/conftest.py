"""Hand-made records: times in ms, rows short enough to draw."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.records.schema import TABLES
from magneton_dist.timeline.arrivals import Joined, join_arrivals, own_arrivals
from magneton_dist.timeline.clocks import RankClock
from magneton_dist.timeline.states import RankStates, rank_states
from magneton_dist.timeline.window import Life, Window, audited_windows, own_life

MS = 1_000_000


def ns(ms: float | None) -> int | None:
    return None if ms is None else round(ms * MS)


@dataclass
class Rank:
    """One rank's record in the making. Its clock shows `ahead` ms more than the common one."""

    rank: int
    ahead: float = 0.0
    rows: dict[str, list[list[Any]]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def own(self, ms: float | None) -> int | None:
        return None if ms is None else ns(ms + self.ahead)

    def call(
        self, start: float, end: float | None, *, op: str = "allreduce_", group: str | None = "0",
        size: int | None = 2, seq: int | None = -1, origin: str = "ddp", step: int = 0, bytes: int | None = 100,
        root: int | None = None, zero: bool | None = False, stack: int = 7,
    ) -> None:  # fmt: skip
        """A collective; `seq` counts up by itself unless given (None: unknown)."""
        mine = self.rows["collectives"]
        nth = sum(row[1] == group for row in mine)
        issue = self.own(start)
        mine.append([
            len(mine), group, size, self.rank, nth if seq == -1 else seq, op, origin, bytes, "float32", zero,
            root, step, issue, issue, self.own(end), stack,
        ])  # fmt: skip

    def step(self, start: float, end: float, kind: str = "measured") -> None:
        mine = self.rows["steps"]
        mine.append([len(mine), self.own(start), self.own(end), kind, None, None])

    def stamp(self, at: float, cpu: float, delay: float | None = 0.0) -> None:
        self.rows["stamps"].append([self.own(at), ns(cpu), ns(delay)])

    def mark(self, name: str, at: float, detail: str | None = None) -> None:
        self.rows["marks"].append([name, self.own(at), detail])

    def activity(self, kind: str, start: float, end: float, stream: int = 7) -> None:
        self.rows["activities"].append(["GPU-0", stream, kind, kind, self.own(start), self.own(end), None, None, None])

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        return {n: pl.DataFrame(rows, schema=TABLES[n].schema, orient="row") for n, rows in self.rows.items()}


@dataclass
class Run:
    """Ranks on one host, with exact clocks unless others are given."""

    ranks: list[Rank]
    clocks: dict[int, Any] | None = None

    @property
    def joined(self) -> Joined:
        exact = {r.rank: RankClock(ns(-r.ahead) or 0) for r in self.ranks}
        tables = [own_arrivals(r.tables["collectives"], r.rank) for r in self.ranks]
        return join_arrivals(tables, exact if self.clocks is None else self.clocks)

    @property
    def lives(self) -> dict[int, Life]:
        return {r.rank: own_life(r.tables, r.rank) for r in self.ranks}

    def windows(self, exits: dict[int, int] | None = None) -> dict[int, Window]:
        return audited_windows(self.lives, self.joined.clocks, exits)[0]

    def states(self, rank: int, window: Window | None = None, device: str = "cpu") -> RankStates:
        window = self.windows()[rank] if window is None else window
        return rank_states(self.ranks[rank].tables, self.joined.of(rank), window, device)


def in_ms(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows of a states table: (start, end, phase, activity), times in ms."""
    return [(a / MS, b / MS, phase, activity) for a, b, phase, activity in frame.iter_rows()]


@pytest.fixture
def rank() -> type[Rank]:
    return Rank


@pytest.fixture
def run() -> type[Run]:
    return Run


@pytest.fixture
def rows() -> Any:
    return in_ms


@pytest.fixture
def traces() -> Path:
    """Real traces by others; skipped where they are not."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "traces"
    folder = Path(os.environ.get("MAGNETON_DIST_TRACES", beside))
    if not folder.is_dir():
        pytest.skip("the shared traces are not here (MAGNETON_DIST_TRACES)")
    return folder
