"""`magneton-dist launch` interrupted and killed: what the user sees, and what `audit` makes of the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from magneton_dist.cluster.processes import descendants, is_alive

pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer

JOB = Path(__file__).parent / "scripts" / "cluster_job.py"
COMMAND = [sys.executable, "-m", "magneton_dist.commands"]
CONFIG = f"""
name: faults
job:
  torchrun: {{nproc_per_node: 2}}
  script: {JOB}
  args: ["5000", "0.02"]
repeats: 1
warmup_runs: 0
energy: {{meter: "modelled:h200"}}
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`launch` on its own, once both ranks have made some steps."""
    (tmp_path / "faults.yaml").write_text(CONFIG)
    process = subprocess.Popen(
        [*COMMAND, "launch", "faults.yaml"],
        cwd=tmp_path,
        env={**os.environ, "MARK": uuid.uuid4().hex},
        stdout=(tmp_path / "out").open("wb"),
        stderr=(tmp_path / "err").open("wb"),
        start_new_session=True,
    )
    end_s = time.monotonic() + 240
    while len(list(tmp_path.glob("runs/*/job/0/spool/0/l*-0/00000[6-9].jsonl"))) < 2:
        assert process.poll() is None, (tmp_path / "err").read_text()
        assert time.monotonic() < end_s
        time.sleep(0.1)
    yield process
    for below in descendants(process.pid):
        os.kill(below.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def ranks(folder: Path) -> list[int]:
    found = folder.glob("runs/*/job/0/spool/0/rank-*.json")
    return [json.loads(path.read_text())["pid"] for path in found]


def test_ctrl_c_reports_what_was_recorded(launched: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pids = ranks(tmp_path)
    below = descendants(launched.pid)
    launched.send_signal(signal.SIGINT)
    sent_s = time.monotonic()
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() - sent_s < 2.0
        time.sleep(0.01)
    assert launched.wait(60) == 128 + signal.SIGINT
    ended_s = time.monotonic() - sent_s
    print(f"Ctrl-C on the command line: ended after {ended_s:.2f} s")
    assert not [process for process in below if is_alive(process.pid, process.start_ticks)]
    [audit] = tmp_path.glob("runs/*/audit.json")
    said = json.loads(audit.read_text())
    assert any("SIGINT" in what for what in said["missing"])
    assert said["variants"]["job"]["ranks"][0]["steps"] >= 1


def test_audit_finishes_what_a_killed_launch_left(launched: subprocess.Popen[bytes], tmp_path: Path) -> None:
    [driver] = [process for process in descendants(launched.pid) if process.parent == launched.pid]
    [folder] = (tmp_path / "runs").iterdir()
    running = subprocess.run(
        [*COMMAND, "audit", str(folder)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert running.returncode == 2
    assert "is being made by process" in running.stderr

    below = descendants(launched.pid)
    os.kill(driver.pid, signal.SIGKILL)
    assert launched.wait(20) == 128 + signal.SIGKILL
    assert not [process for process in below if is_alive(process.pid, process.start_ticks)]
    done = subprocess.run([*COMMAND, "audit", str(folder)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    said = json.loads((folder / "audit.json").read_text())
    assert any("its audit ended first" in what for what in said["missing"])
    assert [rank["rank"] for rank in said["variants"]["job"]["ranks"]] == [0, 1]
    assert said["variants"]["job"]["ranks"][0]["energy_j"] > 0
    assert not (folder / "job" / "0" / "spool").exists()
