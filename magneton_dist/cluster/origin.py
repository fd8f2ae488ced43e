"""A run's mark of the driver that makes it: which nodes share its file system, and whether it still lives."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from magneton_dist.cluster.processes import is_alive, look_up

ORIGIN = "origin"


def mark() -> str:
    """Text of a new mark of this process."""
    me = look_up(os.getpid())
    return f"{socket.gethostname()} {os.getpid()} {me.start_ticks if me else 0} {secrets.token_hex(8)}"


def is_shared(run: Path, origin: str) -> bool:
    """Whether the folder `run` as seen from here is the one in which its driver put the mark `origin`."""
    path = run / ORIGIN
    return path.is_file() and path.read_text() == origin


def maker(run: Path) -> int | None:
    """Pid of the driver on this host that is making the run now, or None."""
    path = run / ORIGIN
    if not path.is_file():
        return None
    host, pid, start_ticks, _ = path.read_text().split(" ")
    return int(pid) if host == socket.gethostname() and is_alive(int(pid), int(start_ticks)) else None
