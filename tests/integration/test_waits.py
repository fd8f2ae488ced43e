"""Why a rank keeps another waiting, in real jobs of two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "straggler_job.py"


def findings_of(why: str, folder: Path) -> list[dict[str, Any]]:
    """Those on the job whose rank 1 is late for this reason."""
    config = {
        "job": {
            "torchrun": {"nproc_per_node": 2}, "script": str(SCRIPT), "args": [why], "env": {"OMP_NUM_THREADS": "1"},
        },
        "repeats": 1, "warmup_runs": 0, "energy": {"meter": "modelled:h200"}, "runs": str(folder / "runs"),
    }  # fmt: skip
    (folder / "audit.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "magneton_dist.commands", "launch", str(folder / "audit.yaml"), "--quiet"]
    subprocess.run(command, check=True, capture_output=True, timeout=160)
    (record,) = (folder / "runs").iterdir()
    findings: list[dict[str, Any]] = json.loads((record / "audit.json").read_text())["findings"]
    return findings


def straggler(findings: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [finding for finding in findings if finding["kind"] == "straggler-wait"]
    return found


@pytest.mark.soak
def test_a_rank_that_sleeps_stalls(tmp_path: Path) -> None:
    found = straggler(findings_of("stall", tmp_path))
    assert found["ranks"] == [1]
    assert found["proof"] == "consistent"
    assert found["cause"]["layer"] == "stall"
    assert "rank 1" in found["cause"]["name"]
    assert "data loader" in found["fix"]


def test_a_rank_whose_loader_is_slow_is_told_by_its_loader(tmp_path: Path) -> None:
    findings = findings_of("loader", tmp_path)
    found = straggler(findings)
    assert (found["ranks"], found["cause"]["layer"]) == ([1], "loader")
    assert "num_workers" in found["fix"]
    (idle,) = [finding for finding in findings if finding["kind"] == "host-idle"]
    assert idle["ranks"] == [1]
    assert "by a DataLoader without workers" in idle["title"]
    # of its 27 measured steps, each with a nap of 0.15 s
    assert idle["seconds"] == pytest.approx(27 * 0.15, rel=0.05)
    assert "straggler_job.py" in idle["where"]["stack"][0]


@pytest.mark.soak
def test_a_rank_with_more_data_has_more_data(tmp_path: Path) -> None:
    found = straggler(findings_of("data", tmp_path))
    assert found["ranks"] == [1]
    assert found["cause"]["layer"] == "data"
    assert "4800 units" in found["cause"]["values"]["rank 1"]
    assert "600 units" in found["cause"]["values"]["its peers"]
