"""The launch scripts, as far as they go without a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magneton_dist.config import load

LAUNCHERS = Path(__file__).parents[2] / "launchers"


@pytest.fixture
def script(tmp_path: Path):
    """Run one launch script in an empty folder with a `train.py`."""
    (tmp_path / "train.py").touch()
    (tmp_path / "a.yaml").write_text("job: {script: train.py}\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(name: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(LAUNCHERS / name), *words], cwd=tmp_path, env={**os.environ, "PATH": path, **env},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("path", sorted(LAUNCHERS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_well_formed(path: Path):
    assert os.access(path, os.X_OK)
    assert path.read_text().splitlines()[0] == "#!/usr/bin/env bash"
    assert "\nset -euo pipefail\n" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=10)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(path)], check=True, timeout=60)


def test_torchrun_audits_one_run_of_the_command_line(script, tmp_path, monkeypatch):
    ended = script(
        "torchrun.sh",
        "--nproc-per-node",
        "2",
        "train.py",
        "--name",
        "a b",
        MAGNETON_DIST_LAUNCH="--dry-run --set job.seed=3",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("audit      train: 1 variant(s), 1 repeat(s) each\nruns       1 ")
    assert "--nproc-per-node 2 --max-restarts 0 --standalone train.py --name 'a b'\n" in ended.stdout
    assert "  seed     3\n" in ended.stdout
    (config,) = (tmp_path / "runs").iterdir()
    monkeypatch.chdir(tmp_path)
    assert load(config).variants["job"].args == ("--name", "a b")


def test_torchrun_leaves_no_configuration_of_a_wrong_command_line(script, tmp_path):
    ended = script("torchrun.sh", "gone.py")
    assert ended.returncode == 2
    assert ended.stderr == f"magneton-dist: error: there is no file 'gone.py' (looked in {tmp_path})\n"
    assert list((tmp_path / "runs").iterdir()) == []


def test_ray_job_prints_what_it_would_submit(script):
    ended = script(
        "ray_job.sh",
        "--dry-run",
        "--address",
        "http://head:8265",
        "--runs",
        "/shared/runs",
        "a.yaml",
        "--set",
        "repeats=2",
    )
    assert ended.stdout.strip() == (
        "ray job submit --address http://head:8265 --working-dir . -- "
        "magneton-dist launch a.yaml --address auto --set runs=/shared/runs --set repeats=2"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--runs"], "--runs needs a value"),
        (["--what", "a.yaml"], "unknown option --what"),
        (["--runs", "/r"], "no configuration"),
        (["a.yaml"], "no --runs: the job's own folder goes with the job"),
        (["--runs", "r", "a.yaml"], "--runs r must be an absolute path"),
        (["--runs", "/r", "gone.yaml"], "no file gone.yaml in ."),
    ],
)
def test_ray_job_refuses_in_one_line(script, words, error):
    ended = script("ray_job.sh", *words)
    assert (ended.returncode, ended.stderr) == (2, f"ray_job.sh: error: {error} (see --help)\n")


@pytest.mark.parametrize("name", ["torchrun.sh", "ray_job.sh"])
def test_help_is_the_head_of_the_script(script, name):
    ended = script(name, "--help")
    assert ended.returncode == 0
    assert f"launchers/{name} " in ended.stdout
    assert "set -euo" not in ended.stdout
