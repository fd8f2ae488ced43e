"""Whole audits on this machine: real Ray, real torchrun, real gloo."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer


@pytest.mark.soak  # test_launch is the same with the command
def test_an_audit_from_end_to_end(driver: Any) -> None:
    user = driver.folder / "user"
    user.mkdir()
    (user / "polars.py").write_text("raise RuntimeError('the user has a module of this name')\n")
    tell = ["tell", "{run_dir}", "{variant}", "{repeat}", "{seed}"]
    variants = {
        "a": driver.variant(12, 0.02, *tell, seed=7, env={"WHERE": "{run_dir}"}),
        "b": driver.variant(5, 0.02, *tell, seed=7),
    }
    audit = driver.audit(variants=variants, repeats=2, warmup_runs=2)
    outcomes = driver.start(audit, cwd=user, OMP_NUM_THREADS="3", RANK="5", LOCAL_RANK="5").finish()

    # order: warm-ups first, then A B B A, and the discarded ones leave nothing
    runs = [(o["variant"], o["repeat"]) for o in outcomes]
    assert runs == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    folders = {Path(o["folder"]) for o in outcomes}
    assert set(Path(outcomes[0]["folder"]).parents[1].glob("*/*")) == folders

    for outcome in outcomes:
        folder, manifest = Path(outcome["folder"]), outcome["manifest"]
        steps = 12 if outcome["variant"] == "a" else 5
        assert outcome["missing"] == []
        assert outcome["exit_code"] == 0
        assert sorted(p.name for p in folder.iterdir()) == [
            "manifest.json", "output.log", "ranks", "told-0.json", "told-1.json",
        ]  # fmt: skip
        assert json.loads((folder / "manifest.json").read_text()) == manifest
        assert [rank["rank"] for rank in manifest["ranks"]] == [0, 1]
        assert [rank["exit_code"] for rank in manifest["ranks"]] == [0, 0]
        assert {rank["meter"]["provenance"] for rank in manifest["ranks"]} == {"modelled"}
        assert manifest["clocks"] == {socket.gethostname(): {"offset_ns": 0, "error_ns": 0}}
        assert manifest["seed"] == 7
        # every rank's summary was made with what the join knew of both
        for rank in ("0", "1"):
            summary = outcome["summaries"][rank]
            assert summary["steps"] == steps
            assert summary["joined"] == {"steps": {"0": steps, "1": steps}, "clocks": {"0": 0, "1": 0}}
            assert summary["options"] == {"from": "the test"}
            assert outcome["sums"][rank]["steps"] <= steps
            # the actors did not import the module that lies in the driver's working folder
            assert (folder / "ranks" / f"0000{rank}" / "polars.txt").read_text().endswith("polars/__init__.py")
        told = json.loads((folder / "told-0.json").read_text())
        assert told["argv"] == [str(folder), outcome["variant"], str(outcome["repeat"]), "7"]
        assert told["cwd"] == str(user)
        assert told["nice"] == os.getpriority(os.PRIO_PROCESS, 0)  # Ray's workers run at 15
        environment = told["env"]
        assert environment.get("WHERE") == (str(folder) if outcome["variant"] == "a" else None)
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["RANK"] == "0"
        assert environment["HOME"] == str(driver.home)
        assert not [name for name in environment if name.startswith("RAY_")]
        assert not [name for name in environment if name in ("MAGNETON_DIST_GUARD", "MAGNETON_DIST_SESSION")]

    progress = driver.of_kind("progress")
    assert {"Placing", "Running"} <= {moment["state"] for moment in progress}
    assert {moment["runs"] for moment in progress} == {6}
    last = progress[-1]
    assert (last["run"], last["steps"]) == (6, 12)  # known from the runs before
    assert 0 <= last["left_s"] < 60


def test_a_failing_job_keeps_its_output_and_is_not_repeated(driver: Any) -> None:
    variants = {"good": driver.variant(), "bad": driver.variant(3, 0.01, "fail")}
    outcomes = driver.start(driver.audit(variants=variants, baseline="good", repeats=1, warmup_runs=2)).finish()
    assert [(o["variant"], o["discarded"], o["exit_code"]) for o in outcomes] == [
        ("bad", True, 1), ("good", False, 0),
    ]  # fmt: skip
    bad = outcomes[0]
    assert "rank 1 gives up" in bad["output"]
    assert "rank 0 gives up" in (Path(bad["folder"]) / "output.log").read_text()
    # torchrun ends the other rank when it sees the first one fail
    assert 3 in [rank["exit_code"] for rank in bad["manifest"]["ranks"]]
    assert bad["manifest"]["exit_code"] == 1  # torchrun's own
    assert bad["summaries"]["0"]["steps"] == 3


@pytest.mark.soak
def test_jobs_that_end_early_or_are_no_torchrun_jobs(driver: Any) -> None:
    alone = [
        "-c",
        "import torch, os; p = torch.nn.Parameter(torch.zeros(2)); o = torch.optim.SGD([p], 0.1)\n"
        "for _ in range(4): p.grad = torch.ones(2); o.step()\n"
        "print('in', os.getcwd())",
    ]
    where = driver.folder / "elsewhere"
    where.mkdir()
    variants = {
        "alone": {"command": ["python", *alone], "cwd": str(where)},
        "untraced": {"command": ["echo", "no training here"]},
        "long": driver.variant(5000, 0.02, stop_after_steps=6),
        "late": driver.variant(5000, 0.02, timeout_s=12.0),
    }
    outcomes = driver.start(
        driver.audit(variants=variants, baseline="alone"),
        driver.audit(variants={"broken": driver.variant()}, baseline="broken", analysis="BROKEN"),
        PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
    ).finish()
    by_name = {outcome["variant"]: outcome for outcome in outcomes}
    assert set(by_name) == {"alone", "untraced", "long", "late", "broken"}

    one = by_name["alone"]
    assert one["summaries"]["0"]["steps"] == 4
    assert one["manifest"]["world_size"] == 1
    assert one["manifest"]["ranks"][0]["distributed"] is False
    assert f"in {where}" in one["output"]

    assert by_name["untraced"]["exit_code"] == 0
    assert by_name["untraced"]["missing"] == [
        "every rank: no process of the job created a process group or took an optimizer step"
    ]

    stopped = by_name["long"]
    assert stopped["manifest"]["stopped"] is True
    assert stopped["summaries"]["0"]["steps"] == 6
    assert stopped["missing"] == []

    late = by_name["late"]
    assert late["stopped"] == "the job's time limit of 12 s"
    assert late["exit_code"] != 0
    assert late["seconds"] < 60

    broken = by_name["broken"]
    assert list(broken["summaries"]) == ["0"]
    assert broken["missing"] == ["tables of rank 1: collect: ValueError: torn beyond repair"]
    assert (Path(broken["folder"]) / "spool" / "0" / "l1-0").is_dir()  # what could not be read is kept


def test_wrong_input_is_one_line_with_exit_code_2_and_nothing_left(driver: Any) -> None:
    readonly = driver.folder / "file"
    readonly.touch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        busy = {"nproc_per_node": 2, "master_port": port}
        driver.start(
            driver.audit(variants={"a": driver.variant(script="nowhere.py")}),
            driver.audit(runs=str(readonly / "runs")),
            driver.audit(variants={"a": driver.variant(torchrun=busy)}),
            driver.audit(variants={"a": driver.variant(torchrun={"nproc_per_node": 1, "nnodes": 2})}),
            driver.audit(variants={"a": {"command": ["no-such-launcher"]}}),
        )
        assert driver.finish() == []
    script, folder, used, nodes, program = (error["text"] for error in driver.of_kind("error"))
    assert {error["exit_code"] for error in driver.of_kind("error")} == {2}
    assert "no such script: nowhere.py" in script
    assert "cannot be written" in folder
    assert f"port {port} cannot be used" in used
    assert "needs 2 node(s)" in nodes
    assert "--address" in nodes
    assert "no such program: no-such-launcher" in program
    assert list((driver.folder / "runs").iterdir()) == []
