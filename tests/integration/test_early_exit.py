"""EarlyExit against Join, on real ranks (scripts/early_exit_cases.py)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "early_exit_cases.py"
CASES_OF_TWO = 12


def play(scenario: str, world: int, out: Path, *, torchrun: bool = False, limit_s: float = 150) -> dict[str, Any]:
    """What each rank reports, and `codes`, their exit codes, where no torchrun keeps them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launcher = [sys.executable]
    if torchrun:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world)]
    subprocess.run(
        [*launcher, SCRIPT, scenario, str(world), out, str(limit_s - 30)],  # it ends its ranks itself
        check=True,
        timeout=limit_s,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    )
    return {file.stem: json.loads(file.read_text()) for file in out.iterdir()}


def test_two_ranks_end_bit_equal_to_join(tmp_path: Path) -> None:
    ranks = play("equality:1", 2, tmp_path)
    assert ranks["codes"] == {"0": 0, "1": 0}
    for rank in ("0", "1"):
        assert len(ranks[rank]) == CASES_OF_TWO
        assert {name: case["apart"] for name, case in ranks[rank].items() if case["apart"] != 0} == {}
        assert min(case["moved"] for case in ranks[rank].values()) > 1e-3


@pytest.mark.parametrize(("world", "cases"), [(3, 7), pytest.param(4, 2, marks=pytest.mark.soak)])
def test_more_ranks_end_within_rounding_of_join(world: int, cases: int, tmp_path: Path) -> None:
    ranks = play("equality:1", world, tmp_path)
    assert set(ranks.pop("codes").values()) == {0}
    assert len(ranks) == world
    for outcome in ranks.values():
        assert len(outcome) == cases
        assert max(case["apart"] for case in outcome.values()) <= 1e-6
        assert min(case["moved"] for case in outcome.values()) > 1e-3


def test_released_ranks_are_gone_while_the_last_one_trains(tmp_path: Path) -> None:
    ranks = play("released", 3, tmp_path, torchrun=True)
    assert list(ranks) == ["1"]  # the others never left the block
    survivor = ranks["1"]
    assert survivor["gone"] == [0, 2]
    assert survivor["apart"] <= 1e-6
    assert survivor["left"] == 1
    assert "allgather_" in survivor["gather"]
    assert "root is rank 2" in survivor["root"]
    assert "[0, 2] of this process group were released" in survivor["again"]


def test_the_host_of_the_store_parks_where_others_are_released(tmp_path: Path) -> None:
    ranks = play("released", 3, tmp_path)
    assert ranks["codes"] == {"0": 0, "1": 0, "2": 0}
    assert "2" not in ranks
    assert ranks["1"]["gone"] == [2]
    assert "cannot be released" in ranks["0"]["warned"][0]
    for rank in ("0", "1"):
        assert ranks[rank]["apart"] <= 1e-6
        assert ranks[rank]["left"] == 2
        assert "[2] of this process group were released" in ranks[rank]["again"]


@pytest.mark.parametrize("how", ["killed", "stopped", "raised"])
def test_a_lost_rank_is_an_error_of_the_others(how: str, tmp_path: Path) -> None:
    ranks = play(f"lost:{how}", 3, tmp_path)
    assert ranks["0"]["error"] == "SyncError"  # it was parked
    assert ranks["2"]["error"] == "SyncError"
    assert max(ranks[rank]["seconds"] for rank in ("0", "2")) < 20
    if how == "raised":
        assert ranks["1"]["error"] == "ValueError"
        assert "rank 1 left the block with an error" in ranks["0"]["message"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_twenty_times(world: int, tmp_path: Path) -> None:
    ranks = play("equality:20", world, tmp_path, limit_s=1700)
    assert set(ranks.pop("codes").values()) == {0}
    worst = max(case["apart"] for outcome in ranks.values() for case in outcome.values())
    assert worst <= (0 if world == 2 else 1e-6)
