"""A small sound record, hand-made: y = x @ w, then w updated in place by its gradient."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.records.manifest import Clock, Manifest, RankRun
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import write_manifest, write_rank


def table(name: str, *rows: dict[str, object]) -> pl.DataFrame:
    schema = TABLES[name].schema
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def value(value_id: int, storage: int, version: int, role: str, slot: str | None = None) -> dict[str, object]:
    return {
        "value_id": value_id,
        "storage": storage,
        "version": version,
        "offset": 0,
        "shape": [2, 2],
        "stride": [2, 1],
        "dtype": "float32",
        "device": "cpu",
        "bytes": 16,
        "role": role,
        "slot": slot,
    }


def operator(op_id: int, name: str, phase: str, inputs: list[int], outputs: list[int]) -> dict[str, object]:
    return {
        "op_id": op_id,
        "step": 0,
        "name": name,
        "phase": phase,
        "inputs": inputs,
        "outputs": outputs,
        "arguments": "[]",
        "stack_id": 0,
        "start_ns": 10 * op_id,
        "end_ns": 10 * op_id + 5,
    }


def manifest(world_size: int = 1, **changes: object) -> Manifest:
    return Manifest(
        audit="test",
        variant="join",
        repeat=0,
        started="2026-01-01T00:00:00Z",
        world_size=world_size,
        command=["torchrun", "train.py"],
        exit_code=0,
        ranks=[RankRun(rank=rank, local_rank=rank, node="a") for rank in range(world_size)],
        clocks={"a": Clock()},
        versions={"torch": "2.13"},
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def make_table() -> Callable[..., pl.DataFrame]:
    return table


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return manifest


@pytest.fixture
def tables() -> dict[str, pl.DataFrame]:
    step = {"step": 0, "start_ns": 0, "end_ns": 100, "kind": "traced", "units": 2.0, "unit": "samples"}
    call = {
        "call_id": 0,
        "group": "0",
        "group_size": 2,
        "group_rank": 1,
        "seq": 5,
        "op": "allreduce_",
        "origin": "ddp",
        "bytes": 16,
        "dtype": "float32",
        "step": 0,
        "issue_ns": 20,
        "start_ns": 20,
        "end_ns": 40,
        "stack_id": 0,
    }
    full = {name: declared.empty() for name, declared in TABLES.items()}
    full["steps"] = table("steps", step)
    full["collectives"] = table("collectives", call)
    full["ops"] = table(
        "ops",
        operator(0, "aten.mm.default", "forward", [1, 2], [3]),
        operator(1, "aten.detach.default", "forward", [3], [3]),
        operator(2, "aten.mm.default", "backward", [1, 3], [4]),
        operator(3, "aten.add_.Tensor", "optimizer", [2, 4], [5]),
        operator(4, "aten.mul.Tensor", "other", [5, 5], [6]),
    )
    full["values"] = table(
        "values",
        value(1, 1, 0, "input"),
        value(2, 2, 0, "parameter", "w"),
        value(3, 3, 0, "activation"),
        value(4, 4, 0, "gradient", "w"),
        value(5, 2, 1, "parameter", "w"),
        value(6, 5, 0, "activation"),
    )
    full["stacks"] = table(
        "stacks", {"stack_id": 0, "frames": [{"file": "train.py", "line": 3, "function": "main"}]}
    )
    return full


@pytest.fixture
def run(tmp_path: Path, tables: dict[str, pl.DataFrame]) -> Path:
    folder = tmp_path / "audit" / "join" / "0"
    write_rank(folder, 0, tables)
    write_manifest(folder, manifest())
    return folder
