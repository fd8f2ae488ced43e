"""Attention written out against one call, on real ranks: the region that differs, and where it is in the source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magneton_dist
from magneton_dist.records.audit import Audit

pytestmark = pytest.mark.timeout(400)  # a busy machine takes many times longer
SCRIPT = Path(__file__).parent / "scripts" / "attention_job.py"
CONFIG = f"""
name: attention
job:
  torchrun: {{nproc_per_node: 2}}
  script: {SCRIPT}
  env: {{OMP_NUM_THREADS: "1"}}
variants:
  eager: {{args: [eager, "6"]}}
  sdpa: {{args: [sdpa, "6"]}}
baseline: eager
repeats: 1
warmup_runs: 0
capture: {{warmup_steps: 1, graph_steps: 2}}
energy: {{meter: "modelled:h200"}}
"""


def line_of(text: str) -> int:
    """Number of the only line of the script that holds `text`."""
    (number,) = [n for n, line in enumerate(SCRIPT.read_text().splitlines(), start=1) if text in line]
    return number


def run(*words: str | Path) -> str:
    command = [sys.executable, "-m", "magneton_dist.commands", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of an audit, one repeat of each variant."""
    folder = tmp_path_factory.mktemp("attention")
    (folder / "audit.yaml").write_text(CONFIG)
    run("launch", folder / "audit.yaml", "--quiet", "--set", f"runs={folder / 'runs'}")
    (audit,) = (folder / "runs").iterdir()
    return audit


def attention_of(audit: dict[str, Any]) -> dict[str, Any]:
    """The forward region of attention."""
    (region,) = [
        r for r in audit["regions"]
        if r["kind"] == "matched" and any("softmax" in op["name"] for op in r["sides"]["eager"]["shown"])
        and "forward" in r["phases"]
    ]  # fmt: skip
    return region


def test_the_region_has_both_sides_their_operators_and_lines(record: Path) -> None:
    audit = json.loads((record / "audit.json").read_text())
    assert audit["missing"] == []
    assert audit["comparison"]["covered"] > 0.98
    region = attention_of(audit)
    assert region["title"] == "attention"
    assert region["places"] == 2
    assert region["line"] == f"{SCRIPT}:{line_of('self.attend(q, k, v)')} forward"
    eager, sdpa = region["sides"]["eager"], region["sides"]["sdpa"]
    computing = [op["name"] for op in eager["shown"] if op["name"].split(".")[1] in ("bmm", "_softmax", "div")]
    assert computing == ["aten.bmm.default", "aten.div.Tensor", "aten._softmax.default", "aten.bmm.default"]
    (one_call,) = [op for op in sdpa["shown"] if "scaled_dot_product" in op["name"]]
    assert one_call["inputs"][0] == "float32[4, 8, 192, 8]"
    assert eager["stacks"][eager["shown"][-1]["stack"]] != []
    named = {frame.split(" ")[0] for stack in eager["stacks"] for frame in stack}
    assert {f"{SCRIPT}:{line_of('k.transpose(-1, -2)')}", f"{SCRIPT}:{line_of('scores.softmax(-1)')}"} <= named
    assert region["values_error"] < 1e-3


def test_regions_add_up_to_what_the_ranks_burnt_computing(record: Path) -> None:
    audit = json.loads((record / "audit.json").read_text())
    assert len(audit["regions"]) < 200  # none is left out
    for name, variant in audit["variants"].items():
        of_regions = sum(region["sides"][name]["joules"]["mean"] for region in audit["regions"])
        computing = 0.0
        for rank in variant["ranks"]:
            states = [rank["states"].get(f"working/{activity}") for activity in ("compute", "overlap")]
            computing += sum(state["j"] for state in states if state) / rank["steps"]
        assert of_regions == pytest.approx(computing, rel=1e-5)


def test_compare_tells_the_same_offline_and_names_the_line(record: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("compare", record / "eager" / "0", record / "sdpa" / "0")
    audit = json.loads(run(*words, "--by", "memory", "--json", "--html", page))
    assert list(audit["variants"]) == ["eager", "sdpa"]
    assert audit["comparison"]["by"] == "memory"
    # which one holds less is known from one run each; whether it takes longer is not
    assert audit["comparison"]["verdict"] == "inconclusive"
    assert "less memory at a step's peak than eager" in audit["comparison"]["reason"]
    # scores and probabilities, [4, 8, 192, 192] in float32, wait for the backward pass; operators allocate the same
    # in every run, so one run tells
    finding = audit["findings"][0]
    assert finding["kind"] == "region"
    assert finding["variant"] == "eager"
    assert finding["title"].startswith("attention: eager holds ")
    assert finding["title"].endswith("in 2 places")
    lines = {line_of("k.transpose(-1, -2)"), line_of("scores.softmax(-1)")}
    assert finding["where"]["stack"][0] in {f"{SCRIPT}:{line} written_out" for line in lines}
    held = attention_of(audit)["sides"]["eager"]["memory_bytes"]
    assert held >= 2 * 2 * 4 * 8 * 192 * 192 * 4  # on two ranks, in two layers: the probabilities at least
    assert "written_out" in page.read_text()
    assert "attention: eager holds" in run(*words, "--by", "memory")


def test_a_run_against_itself_has_nothing_to_tell(record: Path) -> None:
    audit = magneton_dist.compare(record / "eager", record / "eager")
    assert isinstance(audit, Audit)
    assert audit.findings == []
    assert {region.energy_ratio.mean for region in audit.regions if region.energy_ratio} == {1.0}
    assert audit.comparison is not None
    assert audit.comparison.covered is not None
    assert audit.comparison.covered > 0.99  # the rest: counters of one number, memory that nobody writes
