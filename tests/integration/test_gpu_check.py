"""The GPU check where there is no GPU, and with no more packages than it says that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = ("pydantic", "msgspec", "yaml", "scipy", "ray", "typer", "rich", "networkx", "jinja2", "plotly")


def test_it_runs_with_few_packages_and_skips_with_reasons(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there may be a GPU: run tests/gpu/check itself")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({NOT_NEEDED!r}))\n")
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; sys.argv = ['check', '--quick']; "
    command += f"runpy.run_path({str(ROOT / 'tests' / 'gpu' / 'check.py')!r}, run_name='__main__')"
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    ended = subprocess.run(
        [sys.executable, "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=170,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = ended.stdout.split("\n\n")[-1].splitlines()
    told = {line[:38].strip(): line[38:].strip() for line in table if line.strip()}
    skipped = {name for name, figure in told.items() if figure.startswith("skipped: no GPU: NVML is not usable")}
    assert skipped == {
        "idle and spin", "gpm", "sensor", "solo runs", "tf32", "addmm", "ten captures", "cupti", "launch",
    }  # fmt: skip
    assert told["replay of linear"].endswith("loop")
    assert told["traced job"].startswith("8 steps, ")
    assert "neither NCCL nor separate joules" in told["all-reduce of 2 ranks, gloo, 1 device"]
