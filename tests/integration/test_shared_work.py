"""Several classes of ranks are matched at once, in Ray's processes, with the same result as one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magneton_dist

pytestmark = pytest.mark.timeout(400)  # a busy machine takes many times longer
SCRIPTS = Path(__file__).parent / "scripts"
GUARD = "from magneton_dist.cluster.guard import main; main()"
CONFIG = f"""
name: stages
job:
  torchrun: {{nproc_per_node: 2}}
  script: {SCRIPTS / "pipeline_job.py"}
  env: {{OMP_NUM_THREADS: "1"}}
variants:
  one: {{args: ["4", one-call]}}
  written: {{args: ["4", written-out]}}
baseline: one
repeats: 1
warmup_runs: 0
capture: {{warmup_steps: 1, graph_steps: 2}}
energy: {{meter: "modelled:h200"}}
"""


def script(*words: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-c", GUARD, sys.executable, SCRIPTS / "shared_work.py", *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=350)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_results_come_in_order_and_what_fails_says_why() -> None:
    found = script("calls")
    assert found["squares"] == [0, 1, 2, 3, 4, 5, 6]
    assert found["one"] == [2]
    assert found["raised"] == "ClusterError: sqrt: ValueError: math domain error"
    assert found["died"].startswith("ClusterError: _exit: a process that worked for the analysis died: ")
    assert "give their folder to magneton-dist audit" in found["died"]
    assert found["interrupted"].startswith("KeyboardInterrupt")
    assert found["after_s"] < 30


@pytest.mark.soak
def test_stages_of_a_pipeline_matched_at_once_are_matched_as_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "audit.yaml").write_text(CONFIG)
    found = script("launch", tmp_path / "audit.yaml", tmp_path / "runs")
    assert found["shared"] == [["match_class", 2]]
    again = magneton_dist.audit(found["folder"])  # in this process
    assert [[r.title, r.kind, r.places, r.confidence] for r in again.regions] == found["regions"]
    # Of five blocks on both ranks, four have GELU forward as a region of its own. In the last one before activations
    # are sent, nothing but what GELU saves leads from forward to backward: there they are one.
    gelu = [r for r in again.regions if any("aten.erf" in op.name for op in r.sides["written"].shown)]
    found = sorted(((r.kind, r.places, r.sides["one"].operators) for r in gelu), key=lambda region: -region[1])
    assert found == [("matched", 3, 4), ("matched", 1, 3)]  # which cost more is of this machine's moment
