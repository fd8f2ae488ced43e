import json
import os
from pathlib import Path

import pytest

from magneton_dist.tracer import environment
from magneton_dist.tracer.environment import SITE, Capture, launch_environment, read_settings


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


def test_launch_environment_carries_the_tracer_and_no_other_launcher(spool: Path):
    base = {
        "HOME": "/root", "OMP_NUM_THREADS": "3", "PYTHONPATH": os.pathsep.join(["/a", SITE, "/b"]),
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "x", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "y", "RAY_ADDRESS": "z",
        "MAGNETON_DIST_PID": "7", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    made = launch_environment(base, str(spool), "secret", {"warmup_steps": 3})
    assert made["PYTHONPATH"] == os.pathsep.join([SITE, "/a", "/b"])
    assert json.loads(made.pop("MAGNETON_DIST_CAPTURE")) == {"warmup_steps": 3}
    assert made == {
        "HOME": "/root", "OMP_NUM_THREADS": "3", "NCCL_DEBUG": "INFO", "PYTHONPATH": made["PYTHONPATH"],
        "MAGNETON_DIST_SPOOL": str(spool), "MAGNETON_DIST_TOKEN": "secret",
    }  # fmt: skip


def test_what_is_launched_is_what_is_read(spool: Path):
    capture = {
        "warmup_steps": 1, "graph_steps": 2, "stacks": "none", "max_mb": 8, "stop_after_steps": 5, "seed": 0,
        "kernels": {"every": 50, "steps": 3},
    }  # fmt: skip
    settings = read_settings(launch_environment({}, str(spool), "secret", capture))
    assert settings is not None
    assert settings.spool == str(spool)
    assert settings.capture == Capture(
        warmup_steps=1, graph_steps=2, stacks="none", max_mb=8, stop_after_steps=5, seed=0,
        kernels={"every": 50, "steps": 3},
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"MAGNETON_DIST_SPOOL": ""},
        {"MAGNETON_DIST_SPOOL": "/nonexistent"},
        {"MAGNETON_DIST_TOKEN": "other"},
        {"MAGNETON_DIST_TOKEN": ""},
        {"MAGNETON_DIST_PID": str(os.getpid() + 1)},  # a child of a traced rank
    ],
)
def test_stays_dark(spool: Path, change: dict[str, str]):
    assert read_settings({**launch_environment({}, str(spool), "secret", {}), **change}) is None


def test_a_rank_that_replaces_itself_by_exec_is_still_traced(spool: Path):
    made = launch_environment({}, str(spool), "secret", {})
    assert read_settings({**made, environment.PID: str(os.getpid())}) is not None


def test_an_empty_token_arms_nothing(spool: Path):
    (spool / "token").write_text("\n")
    assert read_settings(launch_environment({}, str(spool), "", {})) is None


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_settings_that_are_no_object_are_an_error(spool: Path, text: str):
    made = launch_environment({}, str(spool), "secret", {})
    with pytest.raises(ValueError, match=r".+"):
        read_settings({**made, "MAGNETON_DIST_CAPTURE": text})
