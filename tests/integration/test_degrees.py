"""Tensor parallelism of degree 1, 2 and 4 on real ranks: shard against shard, and shards against wholes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import magneton_dist
from magneton_dist.records.audit import Audit, RegionResult
from magneton_dist.records.store import AuditRecord

pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]  # a busy machine takes many times longer
SCRIPT = Path(__file__).parent / "scripts" / "tensor_parallel_job.py"
LAYERS = 2
RANKS = {"one": 1, "two": 2, "four": 4, "written": 2}
CONFIG = f"""
name: degrees
job:
  torchrun: {{nproc_per_node: 2}}
  script: {SCRIPT}
  args: ["4", one-call]
  env: {{OMP_NUM_THREADS: "1"}}
variants:
  one: {{torchrun: {{nproc_per_node: 1}}}}
  two: {{}}
  four: {{torchrun: {{nproc_per_node: 4}}}}
  written: {{args: ["4", written-out]}}
baseline: one
repeats: 1
warmup_runs: 0
capture: {{warmup_steps: 1, graph_steps: 2}}
energy: {{meter: "modelled:h200"}}
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> AuditRecord:
    """The record of an audit, one repeat of each variant."""
    folder = tmp_path_factory.mktemp("degrees")
    (folder / "audit.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "magneton_dist.commands", "launch", "audit.yaml", "--quiet", "--set", "runs=runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = (folder / "runs").iterdir()
    loaded = magneton_dist.load(audit)
    assert isinstance(loaded, AuditRecord)
    return loaded


def compared(record: AuditRecord, a: str, b: str) -> Audit:
    found = magneton_dist.compare(record.folder / a, record.folder / b)
    assert isinstance(found, Audit)
    assert len(found.regions) < 200  # none is left out
    return found


def names(region: RegionResult, variant: str, *without: str) -> list[str]:
    short = [op.name.split(".")[1] for op in region.sides[variant].shown]
    return [name for name in short if name not in ("t", "view", "detach", *without)]


def region_with(audit: Audit, operator: str, variant: str) -> RegionResult:
    (region,) = [r for r in audit.regions if operator in names(r, variant)]
    return region


@pytest.mark.parametrize(("a", "b"), [("one", "two"), ("two", "four"), ("four", "two")])
def test_other_degrees_are_compared_between_the_sums_over_all_ranks(record: AuditRecord, a: str, b: str) -> None:
    audit = compared(record, a, b)
    sums = {"one": [], "two": ["allreduce_"], "four": ["allreduce_"]}
    for variant in (a, b):
        forward, backward = (region_with(audit, name, variant) for name in ("gelu", "gelu_backward"))
        assert names(forward, variant) == ["mm", "gelu", "mm", *sums[variant]]
        assert names(backward, variant) == ["mm", "gelu_backward", "mm", *sums[variant]]
        for region in (forward, backward):
            assert (region.kind, region.places) == ("matched", LAYERS)
            shown = region.sides[variant]
            assert shown.operators == len(shown.shown) * LAYERS * RANKS[variant]
            assert region.values_error is not None
            assert region.values_error < 1e-4  # sums in another order
        # the replicated parts are matched operator by operator
        norm = region_with(audit, "native_layer_norm", variant)
        assert names(norm, variant) == ["native_layer_norm"]
        assert norm.sides[variant].operators == 2 * LAYERS * RANKS[variant]
    assert not any("the runs part" in note for note in audit.notes)
    (note,) = [note for note in audit.notes if "neighbours together" in note]
    most, least = sorted((RANKS[a], RANKS[b]), reverse=True)
    assert f"{most // least} ranks of {a if RANKS[a] == most else b}" in note


def test_shards_of_one_degree_are_compared_one_by_one(record: AuditRecord) -> None:
    audit = compared(record, "two", "written")
    for name, written in (
        ("gelu", ["mul", "div", "erf", "add", "mul"]),
        ("gelu_backward", ["mul", "mul", "pow", "neg", "exp", "mul", "mul", "div", "mul", "add"]),
    ):
        region = region_with(audit, name, "two")
        assert names(region, "two") == [name]  # between the two products of a shard
        assert sorted(names(region, "written")) == sorted(written)
        assert (region.kind, region.places) == ("matched", LAYERS)
    assert audit.comparison is not None
    assert audit.comparison.covered is not None
    assert audit.comparison.covered > 0.99


@pytest.mark.parametrize(("a", "b"), [("one", "two"), ("two", "four"), ("two", "written")])
def test_every_operator_and_joule_of_every_rank_is_in_one_region(record: AuditRecord, a: str, b: str) -> None:
    audit = compared(record, a, b)
    for variant in (a, b):
        run = record.runs[variant][0]
        per_rank = [rank.ops.group_by("step").len()["len"].mean() for rank in run.ranks.values()]
        assert len(per_rank) == RANKS[variant]
        assert sum(r.sides[variant].operators for r in audit.regions) == sum(per_rank)  # type: ignore[arg-type]
        computing = 0.0
        for rank in audit.variants[variant].ranks:
            states = (rank.states.get(f"working/{activity}") for activity in ("compute", "overlap"))
            computing += sum(state.j for state in states if state is not None and state.j is not None) / rank.steps
        joules = [r.sides[variant].joules for r in audit.regions]
        assert sum(j.mean for j in joules if j is not None) == pytest.approx(computing, rel=1e-5)


def test_the_mirror_image(record: AuditRecord) -> None:
    forth, back = compared(record, "one", "four"), compared(record, "four", "one")

    def key(region: RegionResult) -> tuple[object, ...]:
        joules = (side.joules for _, side in sorted(region.sides.items()))
        return region.kind, region.places, *(round(j.mean, 9) for j in joules if j is not None)

    assert Counter(map(key, forth.regions)) == Counter(map(key, back.regions))
    assert forth.comparison is not None
    assert back.comparison is not None
    for mine, theirs in (
        (forth.comparison.energy_ratio, back.comparison.energy_ratio),
        (forth.comparison.time_ratio, back.comparison.time_ratio),
    ):
        assert mine is not None
        assert theirs is not None
        assert np.log(mine.mean) == pytest.approx(-np.log(theirs.mean))


def test_a_step_of_the_job_counts_once(record: AuditRecord) -> None:
    audit = compared(record, "one", "two")
    one, two = (audit.variants[name].energy_j for name in ("one", "two"))
    assert audit.comparison is not None
    assert audit.comparison.energy_ratio is not None
    assert one is not None
    assert two is not None
    # both did four steps, whether on one rank or on two
    assert audit.comparison.energy_ratio.mean == pytest.approx(two.mean / one.mean)


def test_the_command_says_how_ranks_correspond(record: AuditRecord) -> None:
    command = [sys.executable, "-m", "magneton_dist.commands", "compare", record.folder / "one", record.folder / "two"]
    done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout)["notes"]
    assert any("the work of 1 rank of one is compared with that of 2 ranks of two" in note for note in notes)
