from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

from magneton_dist.cluster.node_agent import JobStatus, NodeAgent


def test_a_run_that_was_not_started_has_not_the_exit_code_of_the_one_before(tmp_path: Path) -> None:
    agent = NodeAgent("audit-of-a-test", 0)
    old = tmp_path / "0"
    process = subprocess.Popen(["false"])
    process.wait()
    agent._process = process
    agent._launch = SimpleNamespace(run=old, spool=old / "spool" / "0", output=old / "output.log")  # type: ignore[assignment]
    assert agent.poll(old).exit_code == 1
    assert agent.poll(tmp_path / "1") == JobStatus(None, (), ())
    agent._presence.close()
