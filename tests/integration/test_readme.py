"""Every command of the README runs as it stands there; what takes minutes is run dry."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
ON_A_RECORD = [command for command in COMMANDS if " runs/" in command]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands need of the repository, in a folder of its own."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("configs", "examples", "launchers"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    activate = folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n")
    write_traces(folder / "traces")
    return folder


def write_traces(folder: Path) -> None:
    """What the profiler leaves of two ranks: a kernel, then an all-reduce that rank 1 reaches 500 us later."""
    folder.mkdir()
    for rank, compute_us in enumerate((1000, 1500)):
        start, end = 100 + compute_us, 2100
        events = [
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100, "dur": compute_us,
             "args": {"device": 0, "stream": 7}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 20,
             "ts": start, "dur": end - start, "args": {"device": 0, "stream": 20}},
        ]  # fmt: skip
        trace = {
            "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events,
        }  # fmt: skip
        (folder / f"worker{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))


def dry(command: str) -> str:
    """`command`, without what takes minutes."""
    if command.startswith("make "):
        return command.replace("make ", "make --dry-run ", 1)
    if command.startswith("launchers/torchrun.sh "):
        return f"MAGNETON_DIST_LAUNCH=--dry-run {command}"
    if command.startswith("launchers/ray_job.sh "):
        return command.replace(".sh ", ".sh --dry-run ", 1)
    if command.startswith("magneton-dist launch ") and "--dry-run" not in command:
        return f"{command} --dry-run"
    return command


def test_there_are_commands_and_each_is_known():
    assert {command.split()[0] for command in COMMANDS} == {
        "make", ".", "magneton-dist", "launchers/torchrun.sh", "launchers/ray_job.sh",
    }  # fmt: skip
    assert {"make demo", "make test"} <= set(COMMANDS)


def run(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


def test_every_command_runs(clone: Path):
    for command in COMMANDS:
        if command not in ON_A_RECORD:
            run(dry(command), clone)


def test_every_command_on_a_record_runs(clone: Path, monkeypatch):
    small = "job.args=[--layers, '1', --dim, '64', --tokens, '256']"
    quick = "--set repeats=1 --set warmup_runs=0 --set diagnose.budget=0"
    run(f'magneton-dist launch configs/uneven_inputs.yaml {quick} --set "{small}"', clone)
    assert len(ON_A_RECORD) == 3
    for command in ON_A_RECORD:
        run(command, clone)
    (record,) = (clone / "runs").glob("uneven-inputs-*")
    (snippet,) = [block for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S) if ".load(" in block]
    monkeypatch.chdir(clone)
    names: dict[str, Any] = {}
    exec(re.sub(r"runs/uneven-inputs-\w+", f"runs/{record.name}", snippet), names)
    assert names["rank"].collectives.height > 0
    assert names["rank"].graph().number_of_nodes() > 0


def test_the_configuration_it_shows_is_one(clone: Path, monkeypatch):
    from magneton_dist.config import load

    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (clone / "shown.yaml").write_text(shown)
    monkeypatch.chdir(clone)
    config = load("shown.yaml")
    assert (list(config.variants), config.baseline) == (["join", "early-exit"], "join")


def test_files_it_names_exist():
    named = re.findall(r"`((?:configs|launchers|magneton_dist|examples)/[\w./]+)`", TEXT)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
