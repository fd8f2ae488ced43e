"""Everything that can be killed in an audit on this machine, killed: what is left, and what is kept."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer

JOB_GONE_S = 2.0
FINALISED_S = 10.0
LOST_RECORD_NS = 800_000_000  # segments are closed every 0.5 s; the rest is a step and a busy machine


def long_audit(driver: Any, **changes: Any) -> dict[str, Any]:
    """A job of minutes, with helpers that the end of a rank does not end."""
    return driver.audit(variants={"a": driver.job(5000, 0.02, "children")}, **changes)


def kill(driver: Any, *words: str, number: int = signal.SIGKILL) -> int:
    """Kill the process whose command line holds `words`; when, on the monotonic clock."""
    pid = driver.one(*words)
    os.kill(pid, number)
    return time.monotonic_ns()


def seconds_until(driver: Any, condition: Any, limit_s: float) -> float:
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s, f"still there: {driver.processes()}"
        time.sleep(0.01)
    return time.monotonic() - start_s


def counts(folder: str, rank: int) -> dict[str, int]:
    return json.loads((Path(folder) / "ranks" / f"{rank:05d}" / "counts.json").read_text())


def assert_kept(outcome: dict[str, Any], killed_ns: int) -> None:
    """Both ranks have tables that reach up to the kill, and figures."""
    for rank in range(2):
        kept = counts(outcome["folder"], rank)
        assert kept["steps"] >= 5
        assert killed_ns - kept["last_step_ns"] < LOST_RECORD_NS
        assert outcome["summaries"][str(rank)]["steps"] == kept["steps"]
    assert json.loads((Path(outcome["folder"]) / "manifest.json").read_text()) == outcome["manifest"]


def victim(driver: Any, part: str) -> int:
    """Pid of the process called `part`."""
    if part == "rank":
        return driver.ranks()[0]
    supervisors = sorted(driver.processes("magneton_dist.cluster.supervisor"))
    if part in ("front", "supervisor"):  # the supervisor is forked by the front
        return supervisors[0 if part == "front" else 1]
    if part == "torchrun":
        [pid] = [pid for pid in driver.processes("torch.distributed.run") if pid not in supervisors]
        return pid
    return driver.one(part)


@pytest.mark.parametrize("part", ["rank", "torchrun", "supervisor", "front", "ray::NodeAgent"])
def test_a_killed_part_of_the_job_ends_the_job_and_keeps_its_records(
    driver: Any, part: str, record_property: Any
) -> None:
    driver.start(long_audit(driver))
    driver.until_step(5)
    pid = victim(driver, part)
    os.kill(pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    gone_s = seconds_until(driver, driver.job_is_gone, JOB_GONE_S + 1.0)
    [outcome] = driver.finish()
    record_property("gone_s", gone_s)
    print(f"{part}: job gone {gone_s:.2f} s")
    assert_kept(outcome, killed_ns)
    if part == "rank":
        assert outcome["exit_code"] == 1
        assert -9 in [rank["exit_code"] for rank in outcome["manifest"]["ranks"]]
    elif part == "ray::NodeAgent":
        assert outcome["exit_code"] is None
        assert any("exit code of node 0: its agent died" in what for what in outcome["missing"])
    else:
        assert outcome["exit_code"] == 128 + signal.SIGKILL


def test_a_killed_rank_actor_is_replaced_and_the_job_goes_on(driver: Any) -> None:
    driver.start(driver.audit(variants={"a": driver.job(150, 0.1)}))
    driver.until_step(5)
    kill(driver, "ray::RankActor")
    noticed = driver.until(lambda line: line["kind"] == "progress" and line["note"])
    assert "readings" in noticed["note"]
    [outcome] = driver.finish()
    assert outcome["exit_code"] == 0
    assert [summary["steps"] for summary in outcome["summaries"].values()] == [150, 150]
    assert len(outcome["missing"]) == 1


@pytest.mark.parametrize("part", ["ray::Coordinator", "raylet/raylet", "gcs/gcs_server"])
def test_a_killed_part_of_ray_is_noticed_and_the_run_is_finished(driver: Any, part: str) -> None:
    driver.start(long_audit(driver))
    driver.until_step(5)
    killed_ns = kill(driver, part)
    gone_s = seconds_until(driver, driver.job_is_gone, 4.0)
    outcome = driver.until(lambda line: line["kind"] == "outcome", 60.0)
    finished_s = outcome["at"] - killed_ns / 1e9
    print(f"{part}: job gone {gone_s:.2f} s, finalised {finished_s:.2f} s")
    driver.finish()
    assert driver.process.returncode == 0
    assert finished_s < FINALISED_S
    died = {
        "ray::Coordinator": "coordinator died",
        "raylet/raylet": "this node died",
        "gcs/gcs_server": "head died",
    }
    assert any(died[part] in what for what in outcome["missing"])
    assert_kept(outcome, killed_ns)


def test_a_killed_driver_leaves_its_record_and_nothing_else(driver: Any) -> None:
    driver.start(long_audit(driver))
    driver.until_step(5)
    [pid] = [pid for pid, command in driver.processes("cluster_driver.py").items() if "cluster.guard" not in command]
    os.kill(pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    gone_s = seconds_until(driver, lambda: not driver.processes(), 3.0)
    print(f"driver: everything gone {gone_s:.2f} s")
    assert driver.process.wait(5) == 128 + signal.SIGKILL
    driver.assert_clean()
    [run] = (driver.folder / "runs").glob("*/a/0")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["missing"] == ["everything: the audit ended before this run did"]
    for rank in range(2):
        segments = sorted((run / "spool" / "0" / f"l{rank}-0").glob("*.jsonl"))
        rows = [json.loads(line) for path in segments for line in path.read_text().splitlines()]
        assert killed_ns - max(row[3] for row in rows if row[0] == "step") < LOST_RECORD_NS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_the_job_is_gone_in_2_s_and_the_record_finished_in_10(driver: Any, number: signal.Signals) -> None:
    variants = {"a": driver.job(5000, 0.02, "children"), "b": driver.job(5000, 0.02)}
    driver.start(driver.audit(variants=variants, repeats=3))
    driver.until_step(5)
    driver.process.send_signal(number)
    sent_ns = time.monotonic_ns()
    gone_s = seconds_until(driver, driver.job_is_gone, JOB_GONE_S)
    [outcome] = driver.finish(FINALISED_S + 10)
    ended_s = time.monotonic() - sent_ns / 1e9
    print(
        f"{number.name}: job gone {gone_s:.2f} s, finalised {outcome['at'] - sent_ns / 1e9:.2f}, all gone {ended_s:.2f}"
    )
    assert outcome["at"] - sent_ns / 1e9 < FINALISED_S
    assert outcome["stopped"] == number.name
    assert f"the rest of the run: {number.name}" in outcome["missing"]
    assert_kept(outcome, sent_ns)


def test_ctrl_c_in_an_analysis_that_takes_for_ever_keeps_the_spools(driver: Any) -> None:
    driver.start(driver.audit(analysis="SLOW"))
    driver.until(lambda line: line["kind"] == "progress" and line["state"] == "Diagnosing")
    driver.process.send_signal(signal.SIGINT)
    sent_s = time.monotonic()
    [outcome] = driver.finish(FINALISED_S + 20)
    assert outcome["at"] - sent_s < FINALISED_S + 2
    assert "tables and figures: not worked out yet, the spools are kept" in outcome["missing"]
    assert [rank["rank"] for rank in outcome["manifest"]["ranks"]] == [0, 1]
    assert len(list((Path(outcome["folder"]) / "spool" / "0").glob("rank-*.json"))) == 2


def test_a_job_deaf_to_sigterm_is_gone_all_the_same(driver: Any) -> None:
    driver.start(driver.audit(variants={"a": driver.job(3, 0.01, "deaf")}))
    driver.until_step(3)
    driver.process.send_signal(signal.SIGINT)
    assert seconds_until(driver, driver.job_is_gone, JOB_GONE_S) < JOB_GONE_S
    [outcome] = driver.finish(40)
    assert [summary["steps"] for summary in outcome["summaries"].values()] == [3, 3]
