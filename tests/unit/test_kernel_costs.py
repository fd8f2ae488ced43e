"""What the kernels of a run cost, from a handmade trace to the CSV."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.commands import run
from magneton_dist.errors import RecordError
from magneton_dist.kernel_costs import kernel_costs


def event(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, **args}}  # fmt: skip


@pytest.fixture(params=["NVIDIA H200", "Tesla V100-SXM2-16GB"])
def record(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """1 ms, of which a kernel runs for 600 µs."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 9, "tid": 1, "ts": 0, "dur": 1000}
    events = [step, event("kernel", "gemm", 100, 400), event("kernel", "gemm", 600, 200)]
    device, info = {"id": 0, "name": request.param}, {"rank": 0, "world_size": 1}
    trace = {"deviceProperties": [device], "distributedInfo": info, "traceEvents": events}
    (tmp_path / "rank-0.json").write_text(json.dumps(trace))
    assert run(["audit", str(tmp_path / "rank-0.json"), "--out", str(tmp_path / "runs"), "--quiet"]) in (0, 3)
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def test_rows_of_a_rank_add_up_to_its_joules(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = kernel_costs(record / "trace" / "0")
    (gemm,) = costs.filter(pl.col("name") == "gemm").to_dicts()
    assert (gemm["rank"], gemm["energy_kind"], gemm["count"]) == (0, "modelled", 2)
    assert gemm["seconds"] == pytest.approx(600e-6)
    audit = json.loads((record / "audit.json").read_text())
    (rank,) = audit["variants"]["trace"]["ranks"]
    assert costs["joules"].sum() == pytest.approx(rank["energy_j"])
    compute = next(state for key, state in rank["states"].items() if key.endswith("/compute"))
    idle_w = next(state["j"] / state["s"] for key, state in rank["states"].items() if key.endswith("/idle"))
    assert gemm["joules"] == pytest.approx(compute["j"] - idle_w * compute["s"])

    assert run(["export", str(record / "trace" / "0"), "--format", "kernels"]) == 0
    written = pl.read_csv(record / "trace" / "0" / "kernels.csv")
    assert written["joules"].sum() == pytest.approx(rank["energy_j"])
    assert run(["export", str(record / "trace" / "0"), "--format", "kernels"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_without_kernels_it_says_what_to_do(record: Path) -> None:
    with pytest.raises(RecordError, match="is an audit, not one run"):
        kernel_costs(record)
    (record / "trace" / "0" / "ranks" / "00000" / "activities.parquet").unlink()
    with pytest.raises(RecordError, match="no kernels were captured"):
        kernel_costs(record / "trace" / "0")
