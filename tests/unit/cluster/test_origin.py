from __future__ import annotations

import os
import socket
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
    assert maker(tmp_path) == os.getpid()


def test_a_pid_used_again_or_on_another_host_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(f"{socket.gethostname()} {os.getpid()} 1 abcd")
    assert maker(tmp_path) is None
    (tmp_path / ORIGIN).write_text(mark().replace(socket.gethostname(), "elsewhere", 1))
    assert maker(tmp_path) is None
