"""Linux processes: parent-death signals, subreapers, and the end of a whole tree. Standard library only.

A zombie counts as gone. A process is named by pid and start time, so that a pid used again is never signalled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY = "/dev/shm/"
# what torch, Python's multiprocessing, NCCL, CUDA, OpenMP and Ray call theirs; any other file may be the user's data
_SEGMENTS = ("torch_", "psm_", "pym-", "sem.", "nccl-", "cuda.shm.", "__KMP_REGISTERED_LIB_", "plasma")
_POLL_S = 0.005

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One line of /proc: `start_ticks` (clock ticks after boot) tells two owners of one pid apart."""

    pid: int
    parent: int
    state: str
    start_ticks: int


def die_with_parent(parent: int, with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `with_signal` to this process when the thread that forked it ends.

    Args:
        parent: pid of the parent as it was before the fork; when it is gone already, this process ends at once.
        with_signal: what to die of.
    """
    _prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:
        os._exit(1)


def die_with_raylet() -> None:
    """In an actor: end when Ray's node process ends. Call it from the main thread, before anything is started."""
    raylet = os.environ.get("RAY_RAYLET_PID")
    if raylet is not None:  # not set where an actor's class is used without Ray
        die_with_parent(int(raylet))


def adopt_orphans(yes: bool = True) -> None:
    """Make this process the parent of every descendant whose own parent dies (a subreaper), or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def look_up(pid: int) -> Process | None:
    """The process that has `pid` now, or None."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return Process(pid, parent=int(fields[1]), state=fields[0], start_ticks=int(fields[19]))


def is_alive(pid: int, start_ticks: int | None = None) -> bool:
    """Whether `pid` runs, and is still the process that started at `start_ticks` when that is given."""
    process = look_up(pid)
    return process is not None and process.state not in "ZX" and start_ticks in (None, process.start_ticks)


def descendants(root: int) -> list[Process]:
    """Living processes below `root`, parents before children."""
    children: dict[int, list[Process]] = {}
    for pid in _pids():
        process = look_up(pid)
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found, level = [], [root]
    while level:
        below = [child for parent in level for child in children.get(parent, ())]
        found += [child for child in below if child.state not in "ZX"]
        level = [child.pid for child in below]
    return found


def command(pid: int) -> str:
    """Command line of a process, arguments separated by spaces; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def send(process: Process, what: signal.Signals) -> None:
    """Signal exactly this process: never another one that has taken over its pid."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process.pid, process.start_ticks):
                signal.pidfd_send_signal(handle, what)
        finally:
            os.close(handle)


def end_descendants(before: frozenset[str], limit_s: float, grace_s: float = 0.0) -> list[Process]:
    """End everything below this process, which should be a subreaper and reap nothing elsewhere; see `end`."""

    def below() -> list[Process]:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return descendants(os.getpid())

    return end(below, before, limit_s, grace_s)


def end(
    find: Callable[[], list[Process]], before: frozenset[str], limit_s: float, grace_s: float = 0.0
) -> list[Process]:
    """Kill what `find` returns, again and again until that is nothing, and free its shared memory.

    Args:
        find: the processes to end, as they are now.
        before: `shared_files` when the first of them was about to start: what was there then is not theirs.
        limit_s: give up after this time, s.
        grace_s: first let them end by themselves for this time, s.

    Returns:
        What is still alive: processes that the kernel cannot end (blocked in a driver), or of another user.
    """
    start_s = time.monotonic()
    segments: set[str] = set()
    while True:
        alive = find()
        waited_s = time.monotonic() - start_s
        if not alive or waited_s > limit_s:
            break
        if waited_s >= grace_s:
            segments |= shared_memory(process.pid for process in alive)
            for process in alive:
                send(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    _free(segments - before)
    return alive


def shared_files() -> frozenset[str]:
    """Files that lie in /dev/shm now."""
    with suppress(OSError):
        return frozenset(_SHARED_MEMORY + name for name in os.listdir(_SHARED_MEMORY))  # noqa: PTH208 - as in maps
    return frozenset()


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Files under /dev/shm that the processes `pids` have mapped."""
    segments: set[str] = set()
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:
            for line in maps:
                start = line.find(_SHARED_MEMORY)
                if start >= 0 and not line.endswith(" (deleted)\n"):
                    segments.add(line[start:].rstrip("\n"))
    return segments


def _free(segments: set[str]) -> None:
    """Delete a framework's segments that nobody maps any more: their owners were killed before they could."""
    ours = {segment for segment in segments if _is_segment(segment)}
    if not ours:
        return
    for segment in ours - shared_memory(_pids()):
        with suppress(OSError):
            Path(segment).unlink()


def _is_segment(path: str) -> bool:
    """Whether a framework made the file for this user; users keep data of their own beside such files."""
    if not path.removeprefix(_SHARED_MEMORY).startswith(_SEGMENTS):
        return False
    with suppress(OSError):
        return os.lstat(path).st_uid == os.getuid()
    return False


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
