"""A run's mark of the driver that makes it: which nodes share its file system, and whether it still lives."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from magneton_dist.cluster.processes import is_alive, look_up

ORIGIN = "origin"
_STALE_S = 300.0  # a run writes a segment of its spool, a reading or a line far more often


def mark() -> str:
    """Text of a new mark of this process."""
    me = look_up(os.getpid())
    return f"{socket.gethostname()} {os.getpid()} {me.start_ticks if me else 0} {secrets.token_hex(8)}"


def is_shared(run: Path, origin: str) -> bool:
    """Whether the folder `run` as seen from here is the one in which its driver put the mark `origin`."""
    path = run / ORIGIN
    return path.is_file() and path.read_text() == origin


def maker(run: Path) -> str | None:
    """Who makes the run now, in words, or None when nobody does.

    A driver on another host cannot be asked: it counts as alive as long as its run was written to lately.
    """
    path = run / ORIGIN
    if not path.is_file():
        return None
    host, pid, start_ticks, _ = path.read_text().split(" ")
    if host == socket.gethostname():
        return f"process {pid}" if is_alive(int(pid), int(start_ticks)) else None
    return f"process {pid} on {host}" if _quiet_s(run) < _STALE_S else None


def _quiet_s(run: Path) -> float:
    """Seconds since anything in the run's folder was last written to."""
    written_s = run.stat().st_mtime
    for path in run.rglob("*"):
        with suppress(FileNotFoundError):  # a run that is being made renames its files
            written_s = max(written_s, path.stat().st_mtime)
    return time.time() - written_s
