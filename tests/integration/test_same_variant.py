"""The demo with the same variant twice: noise alone must never be called waste. Twelve minutes, for `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attempt", range(10))
def test_noise_is_not_waste(attempt: int, tmp_path: Path) -> None:
    sync = ("join", "early-exit")[attempt % 2]
    config = yaml.safe_load((ROOT / "configs" / "uneven_inputs.yaml").read_text())
    config["job"]["script"] = str(ROOT / config["job"]["script"])
    config |= {"variants": {"a": {"args+": ["--sync", sync]}, "b": {"args+": ["--sync", sync]}}, "baseline": "a"}
    config |= {"runs": "runs", "warmup_runs": 0}
    (tmp_path / "same.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "magneton_dist.commands", "launch", "same.yaml", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)["comparison"]
    print(comparison["verdict"], comparison["energy_ratio"], comparison["noise"], comparison["reason"])
    assert comparison["verdict"] in ("no difference", "inconclusive")
