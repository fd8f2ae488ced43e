"""A record of one step of a small model, and a meter of known power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from recorded_steps import record

from magneton_dist.meters.meter import Conditions, Reading
from magneton_dist.records.audit import EnergyKind
from magneton_dist.records.manifest import Clock, Manifest, RankRun
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import RunRecord, write_manifest, write_rank

WATTS = 40.0


class Embedder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 32)
        self.linear = torch.nn.Linear(32, 64)
        self.also = torch.nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return (self.linear(x) + self.also(x)).relu().sum()


def recorded_step() -> dict[str, pl.DataFrame]:
    torch.manual_seed(0)
    model, tokens = Embedder(), torch.randint(0, 100, (16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return dict(record(step))


@pytest.fixture(scope="session")
def step_tables() -> dict[str, pl.DataFrame]:
    return recorded_step()


@pytest.fixture
def make_run(tmp_path: Path, step_tables: dict[str, pl.DataFrame]) -> Callable[..., RunRecord]:
    def made(variant: str = "a", repeat: int = 0, **changes: pl.DataFrame) -> RunRecord:
        folder = tmp_path / "audit" / variant / str(repeat)
        empty = {name: table.empty() for name, table in TABLES.items()}
        write_rank(folder, 0, {**empty, **{k: v for k, v in step_tables.items() if k in TABLES}, **changes})
        write_manifest(
            folder,
            Manifest(
                audit="audit", variant=variant, repeat=repeat, started="2026-01-01T00:00:00Z", world_size=1,
                command=["train.py"], exit_code=0, ranks=[RankRun(rank=0, local_rank=0, node="a")],
                clocks={"a": Clock()}, versions={},
            ),
        )  # fmt: skip
        return RunRecord(folder)

    return made


class SteadyMeter:
    """A measured device that draws `WATTS`, whatever it does."""

    name, sensor, counter, source, device = "steady", "steady", "steady", "a steady device", "steady"
    provenance: EnergyKind = "measured"
    period_s = 0.001
    window_ns = 0

    def __init__(self) -> None:
        self._opened_ns = time.monotonic_ns()

    def read(self) -> Reading:
        t_ns = time.monotonic_ns()
        return Reading(t_ns, WATTS, WATTS * (t_ns - self._opened_ns) / 1e9)

    def conditions(self) -> Conditions:
        return Conditions()

    def close(self) -> None:
        pass


@pytest.fixture
def steady_meter() -> SteadyMeter:
    return SteadyMeter()
