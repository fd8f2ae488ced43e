"""Ends of processes, again and again: a callback left in a future aborts an interpreter that shuts down."""

import sys
from collections import Counter
from collections.abc import Callable

import pytest

from .conftest import SCRIPTS, Job
from .test_lives import free_port

REPEATS = 40


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["ends", "never_destroys"])
def test_no_rank_aborts(start: Callable[..., Job], way: str):
    statuses: Counter[int] = Counter()
    for _ in range(REPEATS):
        port = free_port()
        ranks = [
            start(
                sys.executable, SCRIPTS / "life.py", way, capture={"warmup_steps": 1, "graph_steps": 1},
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        statuses.update(rank.finish().status for rank in ranks)
    assert statuses == {0: 2 * REPEATS}
