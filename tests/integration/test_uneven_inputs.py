"""examples/uneven_inputs under plain torchrun, without an audit around it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "uneven_inputs" / "train.py"
SMALL = ["--layers", "1", "--dim", "32", "--tokens", "64", "--docs", "16", "--bucket-mb", "0.05"]


# Gloo's threads outlive the process group; one that still holds a tensor when Python ends brings the process down.
# That is torch's (pytorch/pytorch#179291), and met once in hundreds of runs.
TORCH_ENDED_BADLY = "terminate called without an active exception"


def train(*args: str) -> dict[int, tuple[int, int, float, str]]:
    """Per rank that finished: steps, batches, last loss, checksum of the parameters."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", SCRIPT, *SMALL,
             *args],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
        )  # fmt: skip
        if TORCH_ENDED_BADLY not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    line = r"rank (\d+): (\d+) steps of (\d+) batches, .*? loss (\S+), parameters ([0-9a-f]{16})"
    lines = re.findall(line, done.stdout)  # two ranks' lines may run together
    return {int(rank): (int(steps), int(of), float(loss), sums) for rank, steps, of, loss, sums in lines}


def test_early_exit_ends_where_join_ends() -> None:
    join = train("--sync", "join", "--epochs", "2")
    assert join[0][0] < join[1][0]  # the data are uneven
    assert join[0][3] == join[1][3]
    assert train("--sync", "early-exit", "--epochs", "2") == join
    assert train("--sync", "early-exit", "--epochs", "2", "--on-finish", "release") == {1: join[1]}


def test_throw_stops_with_the_first() -> None:
    outcome = train("--sync", "throw")
    assert len(outcome) == 2
    shortest = min(batches for _, batches, _, _ in outcome.values())
    assert {steps for steps, _, _, _ in outcome.values()} == {shortest}
    assert len({checksum for _, _, _, checksum in outcome.values()}) == 1


def test_balanced_with_a_zero_branch() -> None:
    outcome = train("--sync", "join", "--balanced", "--docs", "20", "--zero-branch")
    assert {steps for steps, _, _, _ in outcome.values()} == {20 * 30 // 64}
    assert len({checksum for _, _, _, checksum in outcome.values()}) == 1
