"""The process above the driver: when the driver ends, however it ends, nothing of it stays. Standard library only.

Ray's helper processes outlive a killed driver by a minute. The guard is a subreaper, so they fall to it, and it
ends them and removes the session's temporary folder. It takes the place of the process that the user started:
signals sent to that process reach the driver.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from magneton_dist.cluster.processes import adopt_orphans, die_with_parent, end_descendants, shared_files

FOLDER = "MAGNETON_DIST_SESSION"  # environment of the driver: its private temporary folder
_GUARD = "MAGNETON_DIST_GUARD"  # environment of the driver: pid of its guard
# read by Ray when it is imported: the driver's output is the user's, and we report deaths ourselves
_QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
_LIMIT_S = 10.0
_SHORT = 40  # AF_UNIX paths end at 107 bytes, and Ray needs about 65 of them


def session_folder() -> Path:
    """A new private folder (0700) with a name short enough for Ray's sockets."""
    base = next((folder for folder in (tempfile.gettempdir(), "/tmp") if len(folder) <= _SHORT), None)
    return Path(tempfile.mkdtemp(prefix="mgd-", dir=base))


def enter(arguments: list[str]) -> None:
    """Restart this program, with `arguments`, below a guard; returns at once in a process that has one."""
    if os.environ.get(_GUARD) == str(os.getppid()):
        return
    root = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.insert(0, {root!r}); from magneton_dist.cluster.guard import main; main()"
    driver = [sys.executable, "-P", "-m", "magneton_dist.commands", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", start, *driver])


def main() -> None:
    """``DRIVER...``: run it, pass signals on, clean up after it, and exit with its code."""
    adopt_orphans()
    folder = session_folder()
    environment = {**_QUIET, **os.environ, _GUARD: str(os.getpid()), FOLDER: str(folder)}
    me = os.getpid()
    before = shared_files()
    driver = os.fork()
    if driver == 0:
        die_with_parent(me, signal.SIGTERM)  # the driver can still clean up after a killed guard
        os.execve(sys.argv[1], sys.argv[1:], environment)

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(driver, number)

    passed_on = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        passed_on.append(signal.SIGHUP)
    for number in passed_on:
        signal.signal(number, pass_on)
    status = _wait_for(driver)
    for number in passed_on:
        signal.signal(number, signal.SIG_IGN)
    end_descendants(before, _LIMIT_S)
    shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _wait_for(driver: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == driver:
            return status
