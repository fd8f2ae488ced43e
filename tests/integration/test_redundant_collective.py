"""A broadcast of what every rank has, on real ranks; the reduction of gradients beside it is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)  # a busy machine takes many times longer
SCRIPT = Path(__file__).parent / "scripts" / "buffer_job.py"
CONFIG = f"""
name: buffers
job:
  torchrun: {{nproc_per_node: 2}}
  script: {SCRIPT}
  env: {{OMP_NUM_THREADS: "1"}}
variants:
  one: {{}}
repeats: 1
warmup_runs: 0
capture: {{warmup_steps: 2, graph_steps: 2}}
energy: {{meter: "modelled:h200"}}
"""


def test_a_broadcast_of_equal_buffers_is_told(tmp_path: Path) -> None:
    (tmp_path / "audit.yaml").write_text(CONFIG)
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "magneton_dist.commands", "launch", str(tmp_path / "audit.yaml"), "--quiet"]
    done = subprocess.run([*command, "--set", f"runs={runs}"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = runs.glob("*/audit.json")
    found = [f for f in json.loads(audit.read_text())["findings"] if f["kind"] == "redundant-collective"]
    (finding,) = found
    (line,) = [n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "model(x)" in text]
    assert finding["where"]["stack"][0] == f"{SCRIPT}:{line} <module>"
    assert finding["evidence"]["bytes_per_step"] == 1000 * 500 * 4
    assert finding["evidence"]["ranks_asked"] == 2
    assert finding["ranks"] == [0, 1]
    assert "broadcast_buffers=False" in finding["fix"]
