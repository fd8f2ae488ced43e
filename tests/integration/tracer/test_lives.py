"""How jobs start, step and end, and what is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.cluster.processes import is_alive

from .conftest import SCRIPTS, TORCHRUN, Job

LIFE = SCRIPTS / "life.py"
CAPTURE = {"warmup_steps": 1, "graph_steps": 1}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def kinds(job: Job, local_rank: int = 0) -> list[str]:
    return job.tables(local_rank)["steps"]["kind"].to_list()


# --- how a process ends ---


@pytest.mark.parametrize(
    ("way", "status", "exit_detail"),
    [
        ("raises", 1, {"exception": "KeyError"}),
        ("exits_with_9", 9, None),
        ("leaves_at_once", 7, {"status": 7}),
        ("ends", 0, None),
        pytest.param("never_destroys", 0, None, marks=pytest.mark.soak),
        pytest.param("closes_all_files", 0, {"status": 0}, marks=pytest.mark.soak),
    ],
)
def test_ends_are_the_jobs_own(
    run: Callable[..., Job], alone: dict[str, str], way: str, status: int, exit_detail: object
):
    environment = {**alone, "MASTER_PORT": free_port()}
    dark = run(sys.executable, LIFE, way, capture=None, **environment)
    job = run(sys.executable, LIFE, way, capture=CAPTURE, **environment)
    assert (dark.status, job.status) == (status, status), job.errors
    assert job.output == dark.output
    assert job.errors == dark.errors
    tables = job.tables()
    steps = 4 if way == "closes_all_files" else 3
    assert tables["steps"]["kind"].to_list() == ["warm-up", "traced", "measured", "measured"][:steps]
    (detail,) = tables["marks"].filter(pl.col("name") == "exit")["detail"].to_list()
    assert (None if detail is None else json.loads(detail)) == exit_detail
    # digests are for jobs that came to their end
    assert tables["parameters"].height == (2 if status in (0, 9) and way != "closes_all_files" else 0)


def test_a_killed_rank_loses_half_a_second_at_most(run: Callable[..., Job]):
    job = run(*TORCHRUN, 2, LIFE, "is_killed", capture=CAPTURE)
    assert job.status == 1
    (killed_ns,) = job.said("KILLED")
    tables = job.tables(1)
    last_ns = tables["stamps"]["t_ns"].max()
    assert 0 <= killed_ns - last_ns < 1_000_000_000  # half a second, and what a busy machine takes to write
    assert tables["steps"].height > 3
    assert tables["faults"].height == 0
    assert not tables["marks"]["name"].is_in(["exit"]).any()


def test_ranks_die_with_a_killed_agent(start: Callable[..., Job]):
    job = start(*TORCHRUN, 2, LIFE, "trains_on", capture=CAPTURE)
    assert job.process.stdout is not None
    ranks = [int(job.process.stdout.readline().split()[1]) for _ in range(2)]
    time.sleep(1.5)  # rows are written every half second
    os.kill(job.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(map(is_alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    alive = [pid for pid in ranks if is_alive(pid)]
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert alive == []
    assert job.tables(0)["steps"].height >= 1


def test_restarts_are_kept_apart(run: Callable[..., Job]):
    # one rank: after a restart, two that use the agent's store now and then never find each other (torch 2.13)
    job = run(*TORCHRUN, 1, "--max-restarts", 1, LIFE, "fails_once", capture=CAPTURE)
    assert job.status == 0, job.errors
    announced = job.announced()
    assert set(announced) == {"rank-0-0.json", "rank-0-1.json"}
    assert announced["rank-0-0.json"]["pid"] != announced["rank-0-1.json"]["pid"]
    for restart in (0, 1):
        assert job.tables(0, restart)["steps"]["step"].to_list() == [0, 1]


def test_a_group_name_used_again_is_another_group(run: Callable[..., Job], alone: dict[str, str]):
    job = run(sys.executable, LIFE, "begins_again", capture=CAPTURE, **alone | {"MASTER_PORT": free_port()})
    assert job.status == 0, job.errors
    calls = job.tables()["collectives"]
    assert calls.select("group", "seq").rows() == [("0", 1), ("0", 2), ("0~2", 1)]


# --- how a process starts ---


def test_started_as_a_module(run: Callable[..., Job], tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    shutil.copy(LIFE, tmp_path / "package" / "train.py")
    # a package of our name that lies in the way is not taken for us
    (tmp_path / "magneton_dist").mkdir()
    (tmp_path / "magneton_dist" / "__init__.py").write_text("raise ImportError('not the tracer')\n")
    job = run(*TORCHRUN, 2, "-m", "package.train", "ends", capture=CAPTURE)
    assert job.status == 0, job.errors
    assert set(job.announced()) == {"rank-0-0.json", "rank-1-0.json"}
    assert kinds(job) == ["warm-up", "traced", "measured"]


def test_a_shadowed_sitecustomize_still_runs(
    run: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.stdout.write('HERE true\\n')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    job = run(sys.executable, "-c", "import sys; print('ARMED', str('magneton_dist' in sys.modules).lower())")
    assert job.said("HERE") == [True]
    assert job.said("ARMED") == [True]
    assert job.errors == ""
    assert job.announced() == {}


@pytest.mark.parametrize("way", ["spawns", pytest.param("forks", marks=pytest.mark.soak)])
def test_started_by_multiprocessing(run: Callable[..., Job], way: str):
    job = run(sys.executable, LIFE, way, capture=CAPTURE, PORT=free_port())
    assert job.status == 0, job.errors
    announced = job.announced()
    assert set(announced) == {"rank-0-0.json", "rank-1-0.json"}
    assert [entry["world_size"] for entry in announced.values()] == [2, 2]
    for rank in (0, 1):
        tables = job.tables(rank)
        assert tables["steps"].height == 3
        assert tables["marks"]["name"].to_list().count("exit") == 1  # it ended in an orderly way


def test_a_token_of_another_launch_arms_nothing(run: Callable[..., Job], alone: dict[str, str]):
    environment = alone | {"MASTER_PORT": free_port(), "MAGNETON_DIST_TOKEN": "stale"}
    job = run(sys.executable, LIFE, "ends", capture=CAPTURE, **environment)
    assert job.status == 0
    assert [path.name for path in job.spool.iterdir()] == ["token"]


def test_what_a_rank_announces(run: Callable[..., Job]):
    job = run(*TORCHRUN, 2, LIFE, "ends", capture=CAPTURE)
    for rank in (0, 1):
        said = job.announced()[f"rank-{rank}-0.json"]
        assert (said["rank"], said["local_rank"], said["world_size"]) == (rank, rank, 2)
        assert (said["device"], said["distributed"], said["segments"]) == ("cpu", True, f"l{rank}-0")
        group = job.tables(rank)["marks"].filter(pl.col("name") == "process_group")["detail"][0]
        assert json.loads(group) == {"group": "0", "backend": "gloo", "rank": rank, "size": 2, "ranks": [0, 1]}


# --- steps ---


def test_a_job_without_torch_distributed(run: Callable[..., Job]):
    job = run(sys.executable, LIFE, "is_alone", capture=CAPTURE)
    assert job.status == 0, job.errors
    (said,) = job.announced().values()
    assert (said["rank"], said["world_size"], said["distributed"]) == (0, 1, False)
    assert kinds(job) == ["warm-up", "traced", "measured", "measured", "measured"]
    assert job.tables()["parameters"].height == 2
    assert job.tables()["collectives"].height == 0


def test_the_job_says_its_steps_and_tokens(run: Callable[..., Job]):
    job = run(*TORCHRUN, 2, LIFE, "counts_tokens", capture=CAPTURE)
    assert job.status == 0, job.errors
    steps = job.tables(1)["steps"]
    assert steps["step"].to_list() == list(range(6))
    assert steps["units"].to_list() == [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    assert set(steps["unit"]) == {"tokens"}
    assert (steps["start_ns"][1:] == steps["end_ns"][:-1]).all()


def test_steps_without_optimizer_or_group(run: Callable[..., Job]):
    job = run(sys.executable, LIFE, "counts_samples_alone", capture=CAPTURE)
    assert job.status == 0, job.errors
    assert job.tables()["steps"].select("step", "units", "unit").rows() == [(n, 8.0, "samples") for n in range(3)]


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("skips_a_step", 6),  # one of them with an infinity
        ("updates_by_hand", 6),  # the last one has no backward pass after it
        ("updates_in_backward", 5),
    ],
)
def test_unusual_optimizers(run: Callable[..., Job], alone: dict[str, str], way: str, steps: int):
    job = run(sys.executable, LIFE, way, capture=CAPTURE, **alone | {"MASTER_PORT": free_port()})
    assert job.status == 0, job.errors
    assert job.tables()["steps"]["step"].to_list() == list(range(steps))


def test_stops_after_the_wanted_steps(run: Callable[..., Job]):
    job = run(*TORCHRUN, 2, LIFE, "trains_on", capture={**CAPTURE, "stop_after_steps": 4})
    assert job.status == 0, job.errors
    for rank in (0, 1):
        tables = job.tables(rank)
        assert tables["steps"]["step"].to_list() == [0, 1, 2, 3]
        assert {"stopped", "exit", "last_step"} <= set(tables["marks"]["name"])
        assert tables["parameters"].height == 2


def test_seeds(run: Callable[..., Job]):
    def drawn(seed: int | None) -> list[str]:
        job = run(*TORCHRUN, 2, LIFE, "is_seeded", capture={**CAPTURE, "seed": seed})
        assert job.status == 0, job.errors
        return sorted(line for line in job.output.splitlines() if line.startswith("DRAWN"))

    first, second, other = drawn(3), drawn(3), drawn(4)
    assert first == second != other
    assert first[0].split()[2] != first[1].split()[2]  # ranks differ


def test_the_cap_holds(run: Callable[..., Job], alone: dict[str, str]):
    environment = alone | {"MASTER_PORT": free_port()}
    job = run(sys.executable, LIFE, "counts_tokens", capture={**CAPTURE, "max_mb": 0.0001}, **environment)
    assert job.status == 0, job.errors
    tables = job.tables()
    assert "spool cap" in set(tables["faults"]["where"])
    assert tables["steps"].height == 6
    # Every one of the calls is there, as a row or in a sum: allgather_ and broadcast_ of the constructor, 12 of
    # the reducer, and the broadcasts when it rebuilt its buckets.
    whole = run(sys.executable, LIFE, "counts_tokens", capture=CAPTURE, **environment | {"MASTER_PORT": free_port()})
    calls = whole.tables()["collectives"]
    assert tables["collectives"].height + tables["collective_sums"]["count"].sum() == calls.height
    assert tables["collectives"]["bytes"].sum() + tables["collective_sums"]["bytes"].sum() == calls["bytes"].sum()
