"""Jobs under the tracer alone: no Ray, no actors; what a job says, how it ends, and what its spool holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.records.assembly import assemble
from magneton_dist.tracer.environment import launch_environment

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
LIMIT_S = 150


class Job:
    """One run of a command, traced unless `capture` is None."""

    def __init__(self, folder: Path, command: tuple[str, ...], capture: Mapping[str, object] | None,
                 environment: Mapping[str, str]) -> None:  # fmt: skip
        self.spool = Path(tempfile.mkdtemp(dir=folder))
        (self.spool / "token").write_text("token")
        base = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
        if capture is not None:
            base = launch_environment(base, str(self.spool), "token", capture)
        self.process = subprocess.Popen(
            command, env={**base, **environment}, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def finish(self) -> Job:
        self.output, self.errors = self.process.communicate(timeout=LIMIT_S)
        self.status = self.process.returncode
        return self

    def said(self, word: str) -> list[Any]:
        """What follows `word` on the lines that begin with it, as JSON, sorted by text."""
        lines = sorted(line for line in self.output.splitlines() if line.startswith(word + " "))
        return [json.loads(line[len(word) :]) for line in lines]

    def announced(self) -> dict[str, dict[str, Any]]:
        """File name of each announced rank -> what it says."""
        return {path.name: json.loads(path.read_text()) for path in sorted(self.spool.glob("rank-*.json"))}

    def tables(self, local_rank: int = 0, restart: int = 0) -> dict[str, pl.DataFrame]:
        return assemble(self.spool / f"l{local_rank}-{restart}")

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start a command: ``start(*command, capture={...} or None for untraced, NAME=value, ...)``."""
    jobs: list[Job] = []

    def make(*command: object, capture: Mapping[str, object] | None = {}, **environment: str) -> Job:
        jobs.append(Job(tmp_path, tuple(map(str, command)), capture, environment))
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


@pytest.fixture
def run(start: Callable[..., Job]) -> Callable[..., Job]:
    """Start a command and wait for its end."""

    def make(*command: object, **options: Any) -> Job:
        return start(*command, **options).finish()

    return make


@pytest.fixture
def alone() -> dict[str, str]:
    """Environment of the only rank of a job without a launcher, which then ends with the script's own status."""
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
