import json
import os
from pathlib import Path

import pytest

from magneton_dist.tracer.identity import claim
from magneton_dist.tracer.rows import FORMAT_VERSION

LAUNCHERS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch):
    for name in (*LAUNCHERS, "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_launcher_says_the_local_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "3")
    identity = claim(str(tmp_path), 11, 16, distributed=True)
    assert (identity.rank, identity.local_rank, identity.segments) == (11, 3, "l3-0")


def test_without_a_launcher_it_is_the_rank(tmp_path: Path):
    assert claim(str(tmp_path), 1, 2, distributed=True).local_rank == 1


def test_restarts_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [claim(str(tmp_path), 0, 1, distributed=True).restart for _ in range(3)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l0-1", "l0-2", "l0-3"]


def test_what_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    identity = claim(str(tmp_path), 1, 2, distributed=True)
    identity.announce(None)
    identity.announce("GPU-1")
    said = json.loads((tmp_path / "rank-1-0.json").read_text())
    ticks = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    assert said.pop("monotonic_ns") > 0
    assert said.pop("wall_ns") > 1_700_000_000 * 10**9
    assert said == {
        "format": FORMAT_VERSION, "rank": 1, "local_rank": 1, "world_size": 2, "pid": os.getpid(),
        "start_ticks": int(ticks), "node": os.uname().nodename, "restart": 0, "device": "GPU-1",
        "cuda_visible_devices": "5,6", "distributed": True, "segments": "l1-0",
    }  # fmt: skip
    assert not list(tmp_path.glob("*.tmp"))
