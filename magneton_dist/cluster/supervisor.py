"""Runs one command and leaves nothing of it behind. Standard library only.

    NodeAgent ── front (relays the exit code) ── supervisor ── command (torchrun) ── ranks

Front and supervisor are both subreapers: when one of them is killed, the other ends the tree. They hold the
read end of a pipe from the node agent; its end of file says that the agent is gone. Neither imports anything
of the job, and the command starts with an empty signal mask (Ray blocks SIGINT in its workers, and children
inherit the mask).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from magneton_dist.cluster.processes import adopt_orphans, die_with_parent, end_descendants, shared_files

STOP = b"T"  # on the pipe: end the command politely
KILLED = 128 + signal.SIGKILL
_GRACE_S = 1.0  # between SIGTERM and SIGKILL: a job is gone within 2 s of Ctrl-C
_LEAVE_S = 0.3  # helpers of a finished job (resource trackers) may end by themselves
_LIMIT_S = 10.0
_WATCH_S = 1.0
# handlers that this process or Python has set; ignored signals would stay ignored in the command
_CHANGED = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ)


def arguments(pipe: int, folders: list[Path], command: list[str], python: str = sys.executable) -> list[str]:
    """Command line of a supervisor.

    Args:
        pipe: descriptor of the read end of the agent's pipe, inherited.
        folders: temporary folders to remove when the last process is gone.
        command: what to run.
        python: the interpreter that runs the supervisor.
    """
    root = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.insert(0, {root!r}); from magneton_dist.cluster.supervisor import main; main()"
    return [python, "-I", "-S", "-c", start, str(pipe), *map(str, folders), "--", *command]


def main() -> None:
    """``PIPE [FOLDER...] -- COMMAND...``"""
    split = sys.argv.index("--")
    pipe, folders, command = int(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1 :]
    os.set_inheritable(pipe, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    before = shared_files()
    report, say = os.pipe()
    if os.fork() == 0:
        os.close(report)
        code, asked = _supervise(pipe, command)
        _clean(folders, before, grace_s=0.0 if asked else _LEAVE_S)
        with suppress(BrokenPipeError):  # front was killed
            os.write(say, str(code).encode())
        os._exit(code)
    os.close(say)
    said = os.read(report, 16)
    if said:
        os._exit(int(said))
    _clean(folders, before, grace_s=0.0)  # the supervisor was killed: its orphans are ours now
    os._exit(KILLED)


def _supervise(pipe: int, command: list[str]) -> tuple[int, bool]:
    """Run `command` until it ends or is made to; its exit code as a shell gives it, and whether it was made to."""
    adopt_orphans()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, me)
    handle = os.pidfd_open(child)
    stopping = False
    while True:
        timeout_s = _GRACE_S if stopping else _WATCH_S
        watched = [handle] if stopping else [handle, pipe]
        ready = select.select(watched, [], [], timeout_s)[0]
        if handle in ready:
            return _shell_code(os.waitpid(child, 0)[1]), stopping
        if stopping:
            return KILLED, True
        if pipe in ready:
            if os.read(pipe, 1) != STOP:
                return KILLED, True
            stopping = True
            os.kill(child, signal.SIGTERM)


def _become(command: list[str], parent: int) -> None:
    """Turn the forked child into the command; never returns."""
    try:
        die_with_parent(parent)
        for number in _CHANGED:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _clean(folders: list[str], before: frozenset[str], grace_s: float) -> None:
    for process in end_descendants(before, _LIMIT_S, grace_s):
        os.write(2, f"magneton-dist: process {process.pid} could not be ended\n".encode())
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
