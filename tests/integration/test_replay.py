"""The command replay on a real run, and what audit makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from magneton_dist.commands import run
from magneton_dist.energy.replay import run as replay_room
from magneton_dist.energy.replay.protocol import Rules
from magneton_dist.energy.replay.results import read_replayed
from magneton_dist.meters import rapl

WATTS = 65.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """RAPL of a package that draws `WATTS`: a file that says what was drawn until it is read."""
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    counter, of_disk, started = zone / "energy_uj", Path.read_text, time.monotonic()

    def read(path: Path, *arguments: Any, **named: Any) -> str:
        if path != counter:
            return of_disk(path, *arguments, **named)
        return f"{int(1e6 * WATTS * (time.monotonic() - started)) + 7}\n"

    monkeypatch.setattr(Path, "read_text", read)
    return zone.parent


@pytest.mark.timeout(400)
def test_operators_of_a_measured_run_are_replayed_and_carried_into_its_audit(
    tmp_path: Path, powercap: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text(
        f"""
name: small
job: {{torchrun: {{nproc_per_node: 1}}, script: {ROOT}/examples/uneven_inputs/train.py, stop_after_steps: 5}}
variants: {{a: {{}}}}
repeats: 1
warmup_runs: 0
energy: {{meter: "modelled:h200"}}
runs: {tmp_path}/runs
"""
    )
    launched = subprocess.run(
        [sys.executable, "-m", "magneton_dist.commands", "launch", str(config), "--quiet"],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    (record,) = (tmp_path / "runs").iterdir()
    monkeypatch.setattr(rapl.RaplMeter.__init__, "__defaults__", (powercap,))
    # on a busy machine windows differ by any factor
    quick = Rules(warm_up_s=0.1, discard_s=0.1, window_s=0.3, fewest=3, most=3, half_width=100)
    monkeypatch.setattr(replay_room, "Rules", lambda: quick)
    capsys.readouterr()
    assert run(["replay", str(record), "--meter", "rapl", "--budget", "60s", "--only", "addmm.default", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured = [row for row in told["rows"] if row["energy_kind"] == "replayed"]
    assert measured
    for row in measured:
        if row["kind"] == "matmul":
            assert row["joules"] == pytest.approx(WATTS * row["seconds"], rel=0.15)
    assert read_replayed(record / "a" / "0").height == len(told["rows"])
    assert run(["audit", str(record), "--quiet"]) in (0, 3)
    notes = json.loads((record / "audit.json").read_text())["notes"]
    assert any("operators were replayed" in note for note in notes)
