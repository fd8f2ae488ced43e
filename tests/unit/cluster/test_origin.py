from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from magneton_dist.cluster.origin import ORIGIN, is_shared, maker, mark


def test_the_folder_is_the_driver_s_own_only_with_its_mark(tmp_path: Path) -> None:
    mine, other = mark(), mark()
    assert mine != other
    assert not is_shared(tmp_path, mine)
    (tmp_path / ORIGIN).write_text(other)
    assert not is_shared(tmp_path, mine)
    (tmp_path / ORIGIN).write_text(mine)
    assert is_shared(tmp_path, mine)


def test_the_maker_is_known_while_it_lives(tmp_path: Path) -> None:
    assert maker(tmp_path) is None
    (tmp_path / ORIGIN).write_text(mark())
    assert maker(tmp_path) == f"process {os.getpid()}"


def test_a_pid_used_again_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(f"{socket.gethostname()} {os.getpid()} 1 abcd")
    assert maker(tmp_path) is None


def test_a_driver_on_another_host_lives_as_long_as_its_run_is_written_to(tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(mark().replace(socket.gethostname(), "elsewhere", 1))
    segment = tmp_path / "spool" / "0" / "l0-0" / "000000.jsonl"
    segment.parent.mkdir(parents=True)
    segment.write_text("")
    long_ago = time.time() - 3600
    for path in (tmp_path / ORIGIN, *segment.parents[:3], tmp_path):
        os.utime(path, (long_ago, long_ago))
    assert maker(tmp_path) == f"process {os.getpid()} on elsewhere"
    os.utime(segment, (long_ago, long_ago))
    assert maker(tmp_path) is None
