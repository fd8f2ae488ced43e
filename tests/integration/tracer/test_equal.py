"""A traced job computes what an untraced one does, to the bit, and compiles what it compiles."""

from collections import Counter

import polars as pl
import pytest

from .conftest import SCRIPTS, TORCHRUN, Job

CAPTURES: dict[str, dict[str, object] | None] = {
    "dark": None,
    "always on": {"warmup_steps": 2, "graph_steps": 0},
    "everything": {"warmup_steps": 1, "graph_steps": 1000},
}
# 5 steps each of compiled, ddp, no_sync, comm_hook and fsdp2
STEPS = 25
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The same job untraced and traced in two ways."""
    finished = {}
    for name, capture in CAPTURES.items():
        command = (*TORCHRUN, "2", str(SCRIPTS / "equal.py"))
        finished[name] = Job(tmp_path_factory.mktemp("job"), command, capture, {}).finish()
        assert finished[name].status == 0, finished[name].errors
    return finished


def test_results_and_compiled_graphs_are_the_same(jobs: dict[str, Job]):
    expected = jobs["dark"].said("RESULT")
    assert len(expected) == 2 * 9
    assert jobs["always on"].said("RESULT") == expected
    assert jobs["everything"].said("RESULT") == expected
    compiled = next(result for result in expected if result[1] == "compiled")
    assert compiled[4]["runs"] > compiled[4]["graphs"] >= 3  # there was something to disturb


def test_ranks_are_traced_and_nothing_else(jobs: dict[str, Job]):
    assert jobs["dark"].announced() == {}
    for name in ("always on", "everything"):
        assert set(jobs[name].announced()) == {"rank-0-0.json", "rank-1-0.json"}  # no agent, no worker
        folders = {path.name for path in jobs[name].spool.iterdir() if path.is_dir()}
        assert folders == {"l0-0", "l1-0"}


@pytest.mark.parametrize("name", ["always on", "everything"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_record_is_whole(jobs: dict[str, Job], name: str, rank: int):
    tables = jobs[name].tables(rank)
    # Compiled optimizers do not fire. A functional reduce-scatter on gloo has no future and is waited for in C++.
    unseen = "reduce_scatter_tensor_coalesced_"
    assert set(tables["faults"]["where"]) == {"steps", f"collectives {unseen}"}
    assert tables["collectives"].filter(pl.col("end_ns").is_null())["op"].to_list() == [unseen]
    assert tables["collectives"].filter(pl.col("seq").is_null())["op"].to_list() == [("send", "recv_")[rank]]
    assert tables["marks"]["name"].to_list().count("exit") == 1
    kinds = Counter(tables["steps"]["kind"])
    assert kinds.total() == STEPS
    assert kinds["traced"] == (0 if name == "always on" else STEPS - 1)
    assert (tables["ops"].height > 1000) == (name == "everything")


def test_what_was_seen(jobs: dict[str, Job]):
    calls = jobs["always on"].tables(0)["collectives"]

    def count(**wanted: object) -> int:
        return calls.filter(*[pl.col(name) == value for name, value in wanted.items()]).height

    # FSDP2: 3 layers, 5 steps. Each layer is gathered for the forward and again for the backward pass (the root
    # has no parameters of its own) and reduced once.
    fsdp = Counter(calls.filter(pl.col("origin") == "fsdp")["op"])
    assert fsdp == {"_allgather_base_": 5 * (3 + 3), "_reduce_scatter_base_": 5 * 3}
    # Buckets: one in each of 5 synced backward passes of compiled, no_sync and comm_hook. `ddp` begins with one
    # bucket, too, and is then cut at 1048 bytes in the order of gradients: 32 + 1024, 128 + 128 + 128 + 1024.
    assert count(origin="ddp", op="allreduce_") == 3 * 5 + 1 + 4 * 2
    assert count(op="send") == count(op="barrier", origin="user", bytes=0) == 1
    assert count(op="broadcast_", origin="user") == 1
    assert count(op="reduce_scatter_tensor_coalesced_", origin="user") == 1
    send = calls.filter(pl.col("op") == "send").row(0, named=True)
    assert (send["root"], send["seq"], send["bytes"]) == (1, None, 16)
    # sequence numbers count the collectives of a group, from 1 on and without gaps
    assert calls["group"].n_unique() == 2
    for _, group in calls.filter(pl.col("seq").is_not_null()).group_by("group"):
        assert group.sort("call_id")["seq"].to_list() == list(range(1, group.height + 1))
    assert (calls["end_ns"] >= calls["issue_ns"]).all()
