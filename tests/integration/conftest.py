"""A driver program below its guard, in surroundings of its own, and what it leaves behind."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magneton_dist.cluster.processes import Process, is_alive, look_up

SCRIPTS = Path(__file__).parent / "scripts"
JOB = SCRIPTS / "cluster_job.py"
GUARD = "from magneton_dist.cluster.guard import main; main()"
SHARED_MEMORY = Path("/dev/shm")

# A shell that starts the tests in the background has SIGINT ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment carries `mark`: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if is_alive(pid)}


class Driver:
    """`scripts/cluster_driver.py` with a temporary and a home folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short: sockets lie below it
        self.home = folder / "home"
        self.home.mkdir()
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._shared_memory = set(SHARED_MEMORY.iterdir())

    def audit(self, name: str = "test", **changes: Any) -> dict[str, Any]:
        """An audit of one variant `a` with two ranks, three steps, one repeat."""
        known: dict[str, Any] = {
            "name": name,
            "variants": {"a": self.variant()},
            "baseline": "a",
            "repeats": 1,
            "warmup_runs": 0,
            "energy": {"meter": "modelled:h200"},
            "runs": str(self.folder / "runs"),
        }
        return known | changes

    @staticmethod
    def variant(*arguments: object, ranks: int = 2, **changes: Any) -> dict[str, Any]:
        """A job of `scripts/cluster_job.py`."""
        args = [str(argument) for argument in arguments or (3, 0.01)]
        return {"script": str(JOB), "args": args, "torchrun": {"nproc_per_node": ranks}} | changes

    def start(self, *audits: dict[str, Any], cwd: Path | None = None, **environment: str) -> Driver:
        self.process = subprocess.Popen(
            [sys.executable, "-c", GUARD, sys.executable, "-P", str(SCRIPTS / "cluster_driver.py"),
             *map(json.dumps, audits)],
            env={
                **os.environ, "PYTHONPATH": str(SCRIPTS), "MARK": self.mark, "TMPDIR": str(self.temporary),
                "HOME": str(self.home), **environment,
            },
            cwd=cwd or self.folder,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr.log").open("wb"),
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            is_ours = line.startswith(b"{")
            self._lines.put(json.loads(line) if is_ours else {"kind": "noise", "text": line.decode()})
        self._lines.put({"kind": "closed"})

    def until(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 240.0) -> dict[str, Any]:
        """Read what the driver says until `condition` holds of a line."""
        end_s = time.monotonic() + limit_s
        while True:
            line = self._lines.get(timeout=max(0.1, end_s - time.monotonic()))
            self.said.append(line)
            if condition(line):
                return line
            if line["kind"] in ("closed", "end"):
                pytest.fail(f"the driver ended first: {self.said[-3:]} {self.stderr()}")

    def until_step(self, step: int) -> dict[str, Any]:
        return self.until(lambda line: line["kind"] == "progress" and line["step"] >= step)

    def finish(self, limit_s: float = 400.0) -> list[dict[str, Any]]:
        """Wait for the end; the outcomes, and nothing may be left."""
        self.until(lambda line: line["kind"] in ("end", "closed"), limit_s)
        self.process.wait(20)
        self.assert_clean()
        assert self.of_kind("noise") == []
        assert self.stderr() == ""
        return self.of_kind("outcome")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["kind"] == kind]

    def stderr(self) -> str:
        return (self.folder / "stderr.log").read_text(errors="replace")

    def processes(self, *words: str) -> dict[int, str]:
        """Living processes of this driver whose command line holds all `words`."""
        alive = marked(self.mark)
        return {pid: command for pid, command in alive.items() if all(word in command for word in words)}

    def one(self, *words: str) -> int:
        """The pid of the first such process."""
        found = sorted(self.processes(*words))
        assert found, f"no process {words} among {self.processes()}"
        return found[0]

    def ranks(self) -> list[int]:
        """Pids of the job's ranks."""
        return sorted(
            pid for pid, command in self.processes(JOB.name).items()
            if "torch.distributed.run" not in command and "cluster_driver" not in command
        )  # fmt: skip

    def job(self) -> list[Process]:
        """The job's processes as they are now: supervisors, torchrun, ranks and what these have started."""
        pids = {*self.processes(JOB.name, "--"), *self.processes("torch.distributed.run"), *self.processes("sleep 600")}
        found = [look_up(pid) for pid in [*pids, *self.ranks()]]
        return [process for process in found if process is not None]

    def assert_clean(self) -> None:
        """No process, shared memory, temporary folder or file in the home folder is left."""
        assert self.processes() == {}
        assert sorted(self.temporary.iterdir()) == []
        assert sorted(self.home.iterdir()) == []
        # other users of this machine come and go: what is ours and left would stay
        wait_until(lambda: not self._unowned_shared_memory(), 10.0)

    def _unowned_shared_memory(self) -> set[Path]:
        """New segments that no living process maps; other users of this machine map theirs."""
        new = set(SHARED_MEMORY.iterdir()) - self._shared_memory
        maps = []
        for entry in Path("/proc").iterdir():
            try:
                maps.append((entry / "maps").read_text(errors="replace") if entry.name.isdigit() else "")
            except OSError:
                continue
        return {path for path in new if not any(str(path) in text for text in maps)}

    def close(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        shutil.rmtree(self.temporary, ignore_errors=True)


def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until `condition` holds; fails the test after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()
