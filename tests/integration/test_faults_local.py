"""Everything that can be killed in an audit on this machine, killed: what is left, and what is kept."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from magneton_dist.cluster.processes import Process, command, is_alive, look_up

pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer

JOB_GONE_S = 2.0
FINALISED_S = 10.0
LOST_RECORD_NS = 800_000_000  # segments are closed every 0.5 s; the rest is a step and a busy machine


def long_audit(driver: Any, **changes: Any) -> dict[str, Any]:
    """A job of minutes, with helpers that the end of a rank does not end."""
    return driver.audit(variants={"a": driver.variant(5000, 0.02, "children")}, **changes)


def kill(driver: Any, pid: int, number: int = signal.SIGKILL) -> tuple[int, list[Process]]:
    """Signal a process; when, on the monotonic clock (ns), and the job's processes just before."""
    job = driver.job()
    assert len(job) >= 5  # front, supervisor, torchrun, two ranks
    os.kill(pid, number)
    return time.monotonic_ns(), job


def seconds_until_gone(processes: list[Process], limit_s: float) -> float:
    start_s = time.monotonic()
    while alive := [process for process in processes if is_alive(process.pid, process.start_ticks)]:
        assert time.monotonic() - start_s < limit_s, f"still there: {[command(process.pid) for process in alive]}"
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


PARTS = ["rank", "torchrun", "supervisor", "front", "ray::NodeAgent", "ray::Coordinator", "ray::RankActor"]


def victim(driver: Any, part: str) -> int:
    """Pid of the process called `part`."""
    if part == "rank":
        return driver.ranks()[0]
    supervisors = sorted(driver.processes("magneton_dist.cluster.supervisor"))
    if part in ("front", "supervisor"):  # the supervisor is forked by the front
        return supervisors[0 if part == "front" else 1]
    if part == "torchrun":
        [pid] = [
            pid for pid, command in driver.processes("torch.distributed.run").items()
            if pid not in supervisors and "cluster_driver" not in command
        ]  # fmt: skip
        return pid
    return driver.one(part)


@pytest.mark.soak
def test_an_audit_whose_every_run_loses_a_part(driver: Any) -> None:
    long = driver.variant(5000, 0.02, "children")
    variants = {part.removeprefix("ray::"): long for part in PARTS[:-1]}
    variants["RankActor"] = driver.variant(150, 0.05)  # the one that does not end the job
    driver.start(driver.audit(variants=variants, baseline="rank"))
    killed_ns = {}
    for part in PARTS:
        name = part.removeprefix("ray::")
        driver.until(
            lambda line, name=name: line["kind"] == "progress" and line["variant"] == name and line["step"] >= 20
        )
        killed_ns[name], job = kill(driver, victim(driver, part))
        if part != "ray::RankActor":
            # a killed rank leaves the rest to torchrun, which takes its time
            print(f"{part}: job gone {seconds_until_gone(job, 10.0 if part == 'rank' else JOB_GONE_S):.2f} s")
    outcomes = {outcome["variant"]: outcome for outcome in driver.finish()}
    assert set(outcomes) == set(killed_ns)
    for name, outcome in outcomes.items():
        if name != "RankActor":
            assert_kept(outcome, killed_ns[name])

    assert outcomes["rank"]["exit_code"] == 1
    codes = {rank["rank"]: rank["exit_code"] for rank in outcomes["rank"]["manifest"]["ranks"]}
    dead = next(rank for rank, code in codes.items() if code == -signal.SIGKILL)
    assert [f"rank {dead}: it was killed by SIGKILL"] == [w for w in outcomes["rank"]["missing"] if "killed by" in w]
    for name in ("torchrun", "supervisor", "front"):
        assert outcomes[name]["exit_code"] == 128 + signal.SIGKILL
    agent = outcomes["NodeAgent"]
    assert agent["exit_code"] is None
    assert any("exit code of node 0: its agent died" in what for what in agent["missing"])
    assert any("coordinator died" in what for what in outcomes["Coordinator"]["missing"])
    replaced = outcomes["RankActor"]
    assert replaced["exit_code"] == 0
    assert [summary["steps"] for summary in replaced["summaries"].values()] == [150, 150]
    assert [what.startswith("some readings of the actor of rank slot") for what in replaced["missing"]] == [True]
    assert any("some readings" in line["note"] for line in driver.of_kind("progress"))


@pytest.mark.parametrize("part", ["raylet/raylet", pytest.param("gcs/gcs_server", marks=pytest.mark.soak)])
def test_a_killed_part_of_ray_is_noticed_and_the_run_is_finished(driver: Any, part: str) -> None:
    driver.start(long_audit(driver))
    driver.until_step(5)
    killed_ns, job = kill(driver, driver.one(part))
    gone_s = seconds_until_gone(job, 4.0)
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
    everything = [process for process in map(look_up, driver.processes()) if process is not None]
    killed_ns, _ = kill(driver, pid)
    print(f"driver: everything gone {seconds_until_gone(everything, 3.0):.2f} s")
    assert driver.process.wait(5) == 128 + signal.SIGKILL
    driver.assert_clean()
    [run] = (driver.folder / "runs").glob("*/a/0")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["missing"] == ["everything: the audit ended before this run did"]
    for rank in range(2):
        segments = sorted((run / "spool" / "0" / f"l{rank}-0").glob("*.jsonl"))
        rows = [json.loads(line) for path in segments for line in path.read_text().splitlines()]
        assert killed_ns - max(row[3] for row in rows if row[0] == "step") < LOST_RECORD_NS


def test_terminated_the_job_is_gone_in_2_s_and_the_record_finished_in_10(driver: Any) -> None:
    variants = {"a": driver.variant(5000, 0.02, "children"), "b": driver.variant(5000, 0.02)}
    driver.start(driver.audit(variants=variants, repeats=3))
    driver.until_step(5)
    sent_ns, job = kill(driver, driver.process.pid, signal.SIGTERM)
    gone_s = seconds_until_gone(job, JOB_GONE_S)
    [outcome] = driver.finish(FINALISED_S + 10)
    print(f"SIGTERM: job gone {gone_s:.2f} s, finalised {outcome['at'] - sent_ns / 1e9:.2f} s")
    assert outcome["at"] - sent_ns / 1e9 < FINALISED_S
    assert outcome["stopped"] == "SIGTERM"
    assert "the rest of the run: SIGTERM" in outcome["missing"]
    assert_kept(outcome, sent_ns)


@pytest.mark.soak
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
