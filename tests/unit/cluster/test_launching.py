from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from magneton_dist.cluster.launching import Launch, check_port, exit_codes, free_port
from magneton_dist.config import Job, Torchrun
from magneton_dist.errors import InputError


def launch(tmp_path: Path, job: Job, **more: object) -> Launch:
    known: dict[str, object] = {
        "job": job,
        "run": tmp_path / "runs" / "a" / "0",
        "values": {"run_dir": str(tmp_path / "runs/a/0"), "variant": "a", "repeat": "0", "seed": "7"},
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/home/me", "RAY_ADDRESS": "x", "LOCAL_RANK": "3"},
        "cwd": tmp_path,
        "capture": {"warmup_steps": 2},
        "token": "secret",
        "origin": "here",
    }
    return Launch(**(known | more))  # type: ignore[arg-type]


def test_the_job_gets_the_driver_s_environment_and_its_own_on_top(tmp_path: Path) -> None:
    job = Job(script="t.py", env={"HOME": "/elsewhere", "OUT": "{run_dir}/{variant}-{repeat}-{seed}"})
    found = launch(tmp_path, job).job_environment(tmp_path / "tmp")
    assert found["HOME"] == "/elsewhere"
    assert found["OUT"] == f"{tmp_path}/runs/a/0/a-0-7"
    assert found["TMPDIR"] == str(tmp_path / "tmp")
    assert "LOCAL_RANK" not in found
    assert not [name for name in found if name.startswith("RAY_")]
    assert found["MAGNETON_DIST_TOKEN"] == "secret"
    assert json.loads(found["MAGNETON_DIST_CAPTURE"]) == {"warmup_steps": 2}


def test_what_the_user_sets_by_name_is_not_scrubbed(tmp_path: Path) -> None:
    job = Job(script="t.py", env={"MASTER_PORT": "1234", "PYTHONPATH": "/mine"})
    found = launch(tmp_path, job).job_environment(tmp_path)
    assert found["MASTER_PORT"] == "1234"
    first, *rest = found["PYTHONPATH"].split(":")
    assert first.endswith("magneton_dist/tracer/site")
    assert rest == ["/mine"]


def test_our_own_variables_of_the_driver_do_not_reach_the_job(tmp_path: Path) -> None:
    environment = {"PATH": "/bin", "MAGNETON_DIST_GUARD": "1", "MAGNETON_DIST_PID": "2"}
    found = launch(tmp_path, Job(script="t.py"), environment=environment).job_environment(tmp_path)
    assert "MAGNETON_DIST_GUARD" not in found
    assert "MAGNETON_DIST_PID" not in found


def test_devices_are_those_of_the_node_or_left_alone(tmp_path: Path) -> None:
    environment = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    job = Job(script="t.py")
    given = launch(tmp_path, job, environment=environment, devices="5,6").job_environment(tmp_path)
    alone = launch(tmp_path, job, environment=environment).job_environment(tmp_path)
    assert given["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert alone["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_every_node_has_its_own_spool_and_output(tmp_path: Path) -> None:
    first, second = (launch(tmp_path, Job(script="t.py"), node=node) for node in range(2))
    assert first.spool != second.spool
    assert first.output.name == "output.log"
    assert second.output.name == "output-1.log"


def test_a_missing_script_is_the_user_s_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"variant a: script: no such script: nowhere\.py"):
        launch(tmp_path, Job(script="nowhere.py")).check()


def test_a_script_is_looked_for_in_the_job_s_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.py").touch()
    launch(tmp_path, Job(script="t.py", cwd="sub")).check()
    with pytest.raises(InputError, match="no such folder"):
        launch(tmp_path, Job(script="t.py", cwd="other")).check()


def test_a_folder_of_its_own_is_made_for_each_run_others_must_be_there(tmp_path: Path) -> None:
    own = launch(tmp_path, Job(command=("true",), cwd="{run_dir}/work"))
    own.check()
    assert (own.run / "work").is_dir()
    with pytest.raises(InputError, match="no such folder"):
        launch(tmp_path, Job(command=("true",), cwd="elsewhere")).check()
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_program_is_the_user_s_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such program: no-such-launcher"):
        launch(tmp_path, Job(command=("no-such-launcher", "-n", "2"))).check()
    launch(tmp_path, Job(command=(sys.executable, "-c", "pass"))).check()
    launch(tmp_path, Job(command=("sh", "-c", "true"))).check()


def test_a_port_in_use_is_the_user_s_error(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"master_port: port {port} cannot be used"):
            check_port(port)
        with pytest.raises(InputError, match="cannot be used"):
            launch(tmp_path, Job(script="t.py", torchrun=Torchrun(master_port=port))).check()


def test_a_free_port_is_free() -> None:
    check_port(free_port())


def test_exit_codes_are_read_from_torchrun_s_report() -> None:
    report = """
Other Failures:
[1]:
  time      : 2026-01-01_00:00:00
  rank      : 2 (local_rank: 2)
  exitcode  : 3 (pid: 4713)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4712)
  traceback : Signal 9 (SIGKILL) received by PID 4712
"""
    assert exit_codes(report) == {4713: 3, 4712: -9}
