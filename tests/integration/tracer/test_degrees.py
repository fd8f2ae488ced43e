"""Tensor parallelism on one rank against two, without Ray; `test_degrees` in make soak has more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist import pipeline
from magneton_dist.cluster.analysis import CollectRequest
from magneton_dist.comparisons import compare_records
from magneton_dist.records.audit import RegionResult
from magneton_dist.records.manifest import Clock, Manifest, MeterUsed, RankRun
from magneton_dist.records.store import write_manifest

from .conftest import TORCHRUN, Job

SCRIPT = Path(__file__).parents[1] / "scripts" / "tensor_parallel_job.py"
METER = MeterUsed("modelled:h200", "modelled", "modelled: H200", "cpu")
LAYERS = 2


def recorded(job: Job, folder: Path, ranks: int) -> Path:
    """The record of a job that has ended, as an audit's actors make it."""
    assert job.finish().status == 0, job.errors
    for rank in range(ranks):
        pipeline.collect(CollectRequest(folder, rank, job.spool / f"l{rank}-0", None, None, "cpu"))
    of_ranks = [RankRun(rank, rank, "node", device="cpu", exit_code=0, meter=METER) for rank in range(ranks)]
    manifest = Manifest(
        "degrees", folder.parent.name, 0, "2026-01-01T00:00:00Z", ranks, ["train"], 0, of_ranks, {"node": Clock()}, {}
    )
    write_manifest(folder, manifest)
    return folder


def names(region: RegionResult, variant: str) -> list[str]:
    short = [op.name.split(".")[1] for op in region.sides[variant].shown]
    return [name for name in short if name not in ("t", "view", "detach")]


@pytest.mark.timeout(200)  # a busy machine takes many times longer
def test_a_job_of_two_shards_is_compared_with_the_whole_between_the_sums(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    capture = {"warmup_steps": 1, "graph_steps": 1}
    jobs = [start(*TORCHRUN, ranks, SCRIPT, "3", "one-call", capture=capture) for ranks in (1, 2)]
    one, two = (
        recorded(job, tmp_path / "degrees" / name / "0", ranks)
        for job, name, ranks in zip(jobs, ("one", "two"), (1, 2), strict=True)
    )
    audit = compare_records(one, two).audit
    for operator in ("gelu", "gelu_backward"):
        (region,) = [r for r in audit.regions if operator in names(r, "one")]
        assert (region.kind, region.places) == ("matched", LAYERS)
        assert names(region, "one") == ["mm", operator, "mm"]
        assert names(region, "two") == ["mm", operator, "mm", "allreduce_"]
        assert region.values_error is not None
        assert region.values_error < 1e-4  # sums in another order
        whole, shards = region.sides["one"], region.sides["two"]
        assert whole.operators == len(whole.shown) * LAYERS
        assert shards.operators == len(shards.shown) * LAYERS * 2
    assert not any("the runs part" in note for note in audit.notes)
    assert any("the work of 1 rank of one is compared with that of 2 ranks of two" in note for note in audit.notes)
    assert audit.comparison is not None
    assert audit.comparison.covered is not None
    assert 0 < audit.comparison.covered <= 1  # a share of the time of steps of a few ms, on any machine
