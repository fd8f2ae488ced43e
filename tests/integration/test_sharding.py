"""FSDP2 against DDP on real ranks: whole parameters are compared, shards are not taken for other work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import magneton_dist
from magneton_dist.records.audit import Audit, RegionResult

pytestmark = [pytest.mark.timeout(400), pytest.mark.soak]  # a busy machine takes many times longer
SCRIPT = Path(__file__).parent / "scripts" / "sharding_job.py"
CONFIG = f"""
name: sharding
job:
  torchrun: {{nproc_per_node: 2}}
  script: {SCRIPT}
  env: {{OMP_NUM_THREADS: "1"}}
variants:
  ddp: {{args: ["6", ddp]}}
  fsdp: {{args: ["6", fsdp]}}
baseline: ddp
repeats: 1
warmup_runs: 0
capture: {{warmup_steps: 3, graph_steps: 2}}
energy: {{meter: "modelled:h200"}}
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "audit.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "magneton_dist.commands", "launch", "audit.yaml", "--quiet", "--set", "runs=runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (folder / "runs").iterdir()
    found = magneton_dist.compare(made / "ddp", made / "fsdp")
    assert isinstance(found, Audit)
    return found


def names(region: RegionResult, variant: str) -> list[str]:
    return [op.name.split(".")[1] for op in region.sides[variant].shown]


def with_(audit: Audit, operator: str, variant: str) -> list[RegionResult]:
    return [r for r in audit.regions if operator in names(r, variant)]


def test_what_both_compute_on_whole_parameters_is_matched_operator_by_operator(audit: Audit) -> None:
    for operator in ("gelu", "gelu_backward", "native_layer_norm", "native_layer_norm_backward"):
        (region,) = with_(audit, operator, "ddp")
        assert region.kind == "matched"
        assert operator in names(region, "fsdp")
        assert region.sides["ddp"].operators == region.sides["fsdp"].operators
        assert region.values_error is not None
        assert region.values_error < 1e-5
    products = [r for name in ("addmm", "mm") for r in with_(audit, name, "fsdp")]
    assert {r.kind for r in products} == {"matched"}
    assert sum(r.sides["fsdp"].operators for r in products if "addmm" in names(r, "fsdp")) >= 3 * 2


def test_the_optimizer_on_shards_is_neither_one_sided_nor_a_finding(audit: Audit) -> None:
    for variant in ("ddp", "fsdp"):
        updates = with_(audit, "addcdiv_", variant)
        assert updates != []
        assert {r.kind for r in updates} == {"unmatched"}
        assert all("holds another part" in r.judgement for r in updates)
    assert not any("optimizer" in finding.where.what for finding in audit.findings)
    assert any("ranks hold other parts of the parameters" in note for note in audit.notes)
    assert not any("other values before the step" in note for note in audit.notes)
    assert not any("which reads data of" in note for note in audit.notes)  # buckets and flags are no data


def test_gathering_again_is_what_fsdp_has_to_do_for_the_same_parameters(audit: Audit) -> None:
    gathering = with_(audit, "_allgather_base_", "fsdp")
    assert gathering != []
    for region in gathering:
        assert region.kind in ("matched", "one-sided")
        assert not {"mul_", "addcdiv_"} & set(names(region, "ddp"))  # a weight after a small step is not the one before
