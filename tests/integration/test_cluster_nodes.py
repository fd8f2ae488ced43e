"""Audits on several nodes: a Ray cluster of two nodes on this machine, joined with an address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magneton_dist.cluster.processes import is_alive

pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer

SCRIPTS = Path(__file__).parent / "scripts"
OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}


@contextmanager
def started(folder: Path, nodes: int, offer: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A cluster: what a driver needs to join it."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "two_nodes.py"), str(nodes), json.dumps(offer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "cluster.log").open("wb"),
        env={**os.environ, **OPEN, "PYTHONPATH": str(SCRIPTS), "MARK": "nobody"},
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    yield json.loads(next(line for line in process.stdout if line.startswith("{")))
    process.communicate("", timeout=60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two nodes with two places each."""
    with started(tmp_path, 2, {"resources": {"magneton_rank": 2}}) as found:
        yield found


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[dict[str, str]]:
    """One node that says it has three GPUs."""
    with started(tmp_path, 1, {"num_gpus": 3}) as found:
        yield found


def two(driver: Any, *arguments: object, **changes: Any) -> dict[str, Any]:
    return driver.variant(*arguments, torchrun={"nproc_per_node": 1, "nnodes": 2}, **changes)


def raylets(cluster: dict[str, str]) -> list[int]:
    """Pids of the cluster's raylets, the head's first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if "raylet/raylet" in command and cluster["address"] in command:
                found.append(int(entry.name))
    return sorted(found)


def test_a_job_on_two_nodes(driver: Any, cluster: dict[str, str]) -> None:
    too_many = driver.audit(variants={"a": driver.variant(ranks=3)}, address=cluster["address"])
    audit = driver.audit(
        variants={"a": two(driver, 8, 0.05, "tell", "{run_dir}")}, warmup_runs=1, address=cluster["address"]
    )
    [outcome] = driver.start(too_many, audit, **OPEN).finish()
    [error] = driver.of_kind("error")
    assert error["exit_code"] == 2
    assert "needs 1 node(s) with room for 3 rank(s) each, but" in error["text"]
    assert "has 2 place(s)" in error["text"]

    assert outcome["missing"] == []
    manifest = outcome["manifest"]
    assert manifest["world_size"] == 2
    assert [(rank["rank"], rank["local_rank"]) for rank in manifest["ranks"]] == [(0, 0), (1, 0)]
    nodes = [rank["node"] for rank in manifest["ranks"]]
    assert nodes[0].endswith("-0")  # two nodes of one host are told apart
    assert nodes[1].endswith("-1")
    assert manifest["clocks"] == {node: {"offset_ns": 0, "error_ns": 0} for node in nodes}
    assert [summary["steps"] for summary in outcome["summaries"].values()] == [8, 8]
    folder = Path(outcome["folder"])
    told = [json.loads((folder / f"told-{rank}.json").read_text())["env"] for rank in range(2)]
    assert [one["GROUP_RANK"] for one in told] == ["0", "1"]
    assert len({one["MASTER_PORT"] for one in told}) == 1
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json", "output-1.log", "output.log", "ranks", "told-0.json", "told-1.json",
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["0"]  # the discarded run is gone


def test_ranks_get_the_gpus_of_their_bundle_in_order(driver: Any, gpus: dict[str, str]) -> None:
    audit = driver.audit(variants={"a": driver.variant(3, 0.01, "tell", "{run_dir}")}, address=gpus["address"])
    [outcome] = driver.start(audit, CUDA_VISIBLE_DEVICES="7", **OPEN).finish()
    told = json.loads((Path(outcome["folder"]) / "told-0.json").read_text())["env"]
    devices = told["CUDA_VISIBLE_DEVICES"].split(",")
    assert len(devices) == 2
    assert devices == sorted(devices)
    assert set(devices) < {"0", "1", "2"}  # Ray's choice, not the driver's own variable
    # the ranks say that they run on the CPU: they are metered there, which is no disturbance
    assert [rank["device"] for rank in outcome["manifest"]["ranks"]] == ["cpu", "cpu"]
    assert {rank["meter"]["device"] for rank in outcome["manifest"]["ranks"]} == {"cpu"}
    assert outcome["manifest"]["disturbed"] == []


def test_a_lost_node_takes_its_tables_and_leaves_the_others(driver: Any, cluster: dict[str, str]) -> None:
    driver.start(driver.audit(variants={"a": two(driver, 5000, 0.02, "children")}, address=cluster["address"]), **OPEN)
    driver.until_step(100)  # of either rank; the other, as it was heard of up to a second before, has its 5 too
    killed_s = time.monotonic()
    os.kill(raylets(cluster)[1], signal.SIGKILL)  # not the head, where the driver and the coordinator are
    noticed = driver.until(lambda line: line["kind"] == "progress" and "was lost" in line["note"], 20.0)
    [outcome] = driver.finish(60)
    print(f"lost node: noticed {noticed['at'] - killed_s:.2f} s, finished {outcome['at'] - killed_s:.2f} s")
    assert noticed["at"] - killed_s < 3.0
    assert driver.job() == []
    kept = outcome["manifest"]["ranks"]
    lost = next(rank for rank in range(2) if str(rank) not in outcome["summaries"])
    assert outcome["summaries"][str(1 - lost)]["steps"] >= 5
    assert any(f"tables of rank {lost}: lost with its node after" in what for what in outcome["missing"])
    assert outcome["sums"][str(lost)]["steps"] >= 5  # the sums it had sent are kept
    assert [rank["rank"] for rank in kept] == [0, 1]


def test_a_killed_driver_leaves_nothing_on_the_cluster(driver: Any, cluster: dict[str, str]) -> None:
    driver.start(driver.audit(variants={"a": two(driver, 5000, 0.02, "children")}, address=cluster["address"]), **OPEN)
    driver.until_step(5)
    ranks = driver.ranks()
    assert len(ranks) == 2
    [pid] = [pid for pid, command in driver.processes("cluster_driver.py").items() if "cluster.guard" not in command]
    job = driver.job()
    os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    while any(is_alive(process.pid, process.start_ticks) for process in job):
        assert time.monotonic() - killed_s < 10.0
        time.sleep(0.01)
    print(f"driver on a cluster: job gone {time.monotonic() - killed_s:.2f} s")
    driver.process.wait(20)
    driver.assert_clean()


@pytest.mark.soak
def test_two_audits_at_once_say_so(driver: Any, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = type(driver)(folder)
    try:
        job = driver.variant(60, 0.1)
        driver.start(driver.audit("one", variants={"a": job}))
        other.start(other.audit("two", variants={"a": job}))
        [first], [second] = driver.finish(), other.finish()
    finally:
        other.close()
    assert any("-two-" in what for what in first["manifest"]["disturbed"])
    assert any("-one-" in what for what in second["manifest"]["disturbed"])
