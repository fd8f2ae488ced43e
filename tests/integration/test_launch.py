"""The main job on real processes: Ray, torchrun, gloo, the example with uneven data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.records.store import AuditRecord, load
from magneton_dist.records.validation import validate

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "uneven_inputs.yaml"
BALANCED = ROOT / "configs" / "uneven_inputs_balanced.yaml"
BATCHES = {0: 10, 1: 49}  # what data.py packs for the two ranks at its defaults
pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer


def launch(folder: Path, config: Path, *sets: str) -> tuple[AuditRecord, dict[str, Any], str]:
    """Run an audit into `folder`; returns its record, audit.json and what it printed."""
    command = [sys.executable, "-m", "magneton_dist.commands", "launch", str(config)]
    for text in (f"runs={folder}", "diagnose.budget=0", *sets):  # causes: see test_python_path
        command += ["--set", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = folder.iterdir()
    record = load(audit)
    assert isinstance(record, AuditRecord)
    return record, json.loads((audit / "audit.json").read_text()), done.stdout


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditRecord, dict[str, Any], str]:
    """Join against early exit, two repeats."""
    return launch(tmp_path_factory.mktemp("uneven"), CONFIG, "repeats=2", "warmup_runs=0")


def test_the_first_finding_is_the_shadow_of_the_rank_that_finished_early(uneven) -> None:  # type: ignore[no-untyped-def]
    record, audit, text = uneven
    finding = audit["findings"][0]
    assert finding["kind"] == "shadow-collective"
    assert finding["ranks"] == [0]
    assert finding["variant"] == "join"
    # For each batch that rank 1 has beyond rank 0's, Join lets rank 0 reduce zeros for every bucket of rank 1 and for
    # one 4-byte flag (will there be a backward pass?), and asks once who is left; once more at the end.
    beyond = BATCHES[1] - BATCHES[0]
    calls = record.runs["join"][0].ranks[1].collectives
    buckets = calls.filter((pl.col("origin") == "ddp") & (pl.col("step") >= BATCHES[0]))
    assert buckets.height == 3 * beyond
    assert finding["evidence"]["collectives"] == 4 * beyond
    assert finding["evidence"]["control_collectives"] == beyond + 1
    assert finding["evidence"]["zero_bytes"] == buckets["bytes"].sum() + 4 * beyond
    assert finding["joules"]["mean"] > 0
    assert finding["energy_kind"] == "modelled"
    line = next(i for i, s in enumerate((ROOT / "examples/uneven_inputs/train.py").read_text().splitlines(), 1)
                if "with uneven(" in s)  # fmt: skip
    assert finding["where"]["stack"][0].split(" ")[0].endswith(f"examples/uneven_inputs/train.py:{line}")
    assert "EarlyExit" in finding["fix"]
    assert "modelled" in text


def test_early_exit_has_no_shadow_and_its_leaver_is_released(uneven) -> None:  # type: ignore[no-untyped-def]
    _, audit, _ = uneven
    assert [f["variant"] for f in audit["findings"] if f["kind"] == "shadow-collective"] == ["join"]
    states = audit["variants"]["early-exit"]["ranks"][0]["states"]
    assert states["finished/released"]["s"] > sum(v["s"] for k, v in states.items() if k.startswith("working"))


def test_both_variants_end_with_the_same_bits(uneven) -> None:  # type: ignore[no-untyped-def]
    record, audit, _ = uneven
    exact = [record.runs[v][0].ranks[1].parameters["exact"].to_list() for v in ("join", "early-exit")]
    assert exact[0] == exact[1] != []
    assert audit["variants"]["early-exit"]["values_error"] == 0.0
    sums = [
        re.search(r"rank 1: .* parameters ([0-9a-f]{16})", (record.runs[v][0].folder / "output.log").read_text())
        for v in ("join", "early-exit")
    ]
    assert sums[0] is not None
    assert sums[1] is not None
    assert sums[0][1] == sums[1][1]


def test_states_sum_to_wall_time_and_joules_to_the_power_tables_integral(uneven) -> None:  # type: ignore[no-untyped-def]
    record, audit, _ = uneven
    for variant, result in audit["variants"].items():
        for rank in result["ranks"]:
            seconds = sum(state["s"] for state in rank["states"].values())
            assert seconds == pytest.approx(result["time_s"]["mean"], rel=1e-6)
            assert sum(state["j"] for state in rank["states"].values()) == pytest.approx(rank["energy_j"], rel=1e-9)
        for repeat, run in record.runs[variant].items():
            for tables in run.ranks.values():
                rows = tables.power.select("t_ns", "watts", "window_ns").sort("t_ns").rows()
                assert all(a[0] + b[2] == b[0] for a, b in pairwise(rows)), repeat  # no gap
        by_hand = [
            sum(w * n for t in run.ranks.values() for w, n in t.power.select("watts", "window_ns").rows()) / 1e9
            for run in record.runs[variant].values()
        ]
        assert sum(by_hand) / len(by_hand) == pytest.approx(result["energy_j"]["mean"], rel=1e-6)


def test_the_record_is_sound_and_the_page_self_contained(uneven) -> None:  # type: ignore[no-untyped-def]
    record, _, _ = uneven
    for of_variant in record.runs.values():
        for run in of_variant.values():
            assert validate(run) == []
    page = (record.folder / "report.html").read_text()
    assert "shadow-collective" in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


def test_analysing_the_record_again_says_the_same(uneven, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record, audit, _ = uneven
    command = [sys.executable, "-m", "magneton_dist.commands", "audit", str(record.folder), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["variants"] == audit["variants"]
    assert again["comparison"] == audit["comparison"]
    assert again["findings"] == audit["findings"]


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.soak) for n in (3, 4)])
def test_more_ranks_each_that_finishes_early_is_named(world_size: int, tmp_path: Path) -> None:
    _, audit, _ = launch(
        tmp_path, CONFIG, "repeats=1", "warmup_runs=0", f"job.torchrun.nproc_per_node={world_size}",
        "job.args=[--layers, '1', --dim, '64', --tokens, '256']",
    )  # fmt: skip
    shadows = {f["ranks"][0] for f in audit["findings"] if f["kind"] == "shadow-collective"}
    steps = {r["rank"]: r["steps"] for r in audit["variants"]["join"]["ranks"]}
    slowest = max(steps.values())
    early = {rank for rank, n in steps.items() if n < slowest}
    assert shadows
    assert shadows <= early
    assert 0 in shadows
    assert audit["variants"]["early-exit"]["values_error"] < 1e-3  # AdamW amplifies the order of sums over 3 ranks
    assert audit["comparison"]["verdict"] == "inconclusive"  # one run gives no interval
    assert "repeats" in audit["comparison"]["reason"]


@pytest.mark.parametrize("repeats", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_balanced_data_with_a_bucket_of_zeros_has_no_shadow(repeats: int, tmp_path: Path) -> None:
    record, audit, _ = launch(
        tmp_path, BALANCED, f"repeats={repeats}", "warmup_runs=0",
        "job.args=[--balanced, --docs, '120', --zero-branch, --dim, '64']",
    )  # fmt: skip
    zeros = record.runs["join"][0].ranks[0].collectives.filter(pl.col("zero_payload") & (pl.col("origin") == "ddp"))
    assert zeros.height > 0  # there are all-zero buckets, and rightly so
    assert [f["kind"] for f in audit["findings"] if f["kind"] == "shadow-collective"] == []
    assert audit["comparison"]["verdict"] != "waste"
