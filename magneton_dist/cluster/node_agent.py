"""The actor that runs one node's part of the job, under a supervisor, and dies with its node."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from magneton_dist.cluster.analysis import Announcement
from magneton_dist.cluster.clocks import clock_identity
from magneton_dist.cluster.launching import Launch, check_port, free_port
from magneton_dist.cluster.manifests import delete
from magneton_dist.cluster.origin import is_shared
from magneton_dist.cluster.presence import Presence
from magneton_dist.cluster.processes import die_with_raylet
from magneton_dist.cluster.supervisor import KILLED, STOP, arguments

CLOCK = "clock"  # in a spool: identity of the clock that its times are of
_SHORT = 60  # the job's own AF_UNIX sockets lie below TMPDIR, and their paths end at 107 bytes
_TAIL_BYTES = 16_384
_PRESENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is."""

    hostname: str
    clock: str  # see `clocks.clock_identity`
    niceness: int = 0  # that the job inherits from Ray's worker


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What happened since the poll before.

    Attributes:
        exit_code: of the command, as a shell would give it; None while it runs.
        announced: ranks that have announced themselves.
        others: names of other audits on this machine.
        output: the end of what it printed, once it has ended.
    """

    exit_code: int | None
    announced: tuple[Announcement, ...]
    others: tuple[str, ...]
    output: str = ""


class NodeAgent:
    """Starts, polls and stops the job; every method returns at once."""

    def __init__(self, audit: str, node: int) -> None:
        # Ray runs an actor's synchronous methods on its main thread: the supervisor's parent thread stays
        die_with_raylet()
        self._presence = Presence(audit, f"node-{node}-{os.getpid()}")
        self._presence_due_s = 0.0
        self._launch: Launch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._temporary: Path | None = None
        self._seen: set[Announcement] = set()

    def describe(self) -> NodeFacts:
        """Host, clock and priority."""
        return NodeFacts(socket.gethostname(), clock_identity(), os.getpriority(os.PRIO_PROCESS, 0))

    def clock_ns(self) -> int:
        """This host's monotonic clock."""
        return time.monotonic_ns()

    def endpoint(self, port: int | None) -> int:
        """The port at which the nodes shall meet: `port`, or a free one.

        Raises:
            InputError: `port` is taken.
        """
        if port is None:
            return free_port()
        check_port(port)
        return port

    def start(self, launch: Launch) -> bool:
        """Start the job; whether the run's folder here is the driver's own.

        Raises:
            InputError: the job cannot start, or its folder cannot be written.
        """
        self._launch = self._process = None  # of the run before
        launch.check()
        self._seen.clear()
        self._launch = launch
        launch.spool.mkdir(parents=True, exist_ok=True)
        (launch.spool / "token").write_text(launch.token)
        (launch.spool / CLOCK).write_text(clock_identity())
        self._temporary = _temporary_folder(launch)
        ours, self._pipe = os.pipe()
        with launch.output.open("wb") as output:
            self._process = subprocess.Popen(
                arguments(ours, [self._temporary], launch.command()),
                cwd=launch.folder,
                env=launch.job_environment(self._temporary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(ours,),
                start_new_session=True,
            )
        os.close(ours)
        return is_shared(launch.run, launch.origin)

    def poll(self, run: Path) -> JobStatus:
        """How the job of the run in folder `run` is; it runs as long as it has not been started."""
        if self._launch is None or self._launch.run != run:  # the run before has nothing to say of this one
            return JobStatus(None, (), self._others())
        exit_code = None if self._process is None else self._process.poll()
        if exit_code is not None:
            self._release()
            exit_code = KILLED if exit_code < 0 else exit_code
        return JobStatus(
            exit_code,
            self._announced(),
            self._others(),
            tail(self._launch.output) if self._launch and exit_code is not None else "",
        )

    def stop(self) -> None:
        """Ask the supervisor to end the job."""
        if self._pipe is not None:
            with suppress(BrokenPipeError):  # the supervisor was killed, and the job with it
                os.write(self._pipe, STOP)

    def clear(self, everything: bool) -> None:
        """Delete the node's spool, whose contents have become tables, or the whole folder of a discarded run."""
        if self._launch is not None:
            if everything:
                shutil.rmtree(self._launch.run, ignore_errors=True)
            else:
                delete(self._launch.spool, self._launch.run / f".spool-{self._launch.node}")
            with suppress(OSError):  # other nodes' spools may lie beside it
                self._launch.spool.parent.rmdir()

    def _release(self) -> None:
        """Close the pipe: a supervisor whose front was killed ends the job now."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _announced(self) -> tuple[Announcement, ...]:
        """Ranks that have announced themselves since the call before."""
        fresh = [a for a in announcements(self._launch.spool) if a not in self._seen] if self._launch else []
        self._seen.update(fresh)
        return tuple(fresh)

    def _others(self) -> tuple[str, ...]:
        if time.monotonic() < self._presence_due_s:
            return ()
        self._presence_due_s = time.monotonic() + _PRESENCE_S
        return tuple(self._presence.others())


def tail(output: Path) -> str:
    """The end of what a job printed; empty when it printed nothing."""
    if not output.exists():
        return ""
    with output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def announcements(spool: Path) -> list[Announcement]:
    """All announcements in a node's spool, a restarted rank's last one last; the tracer renames them into place."""
    found = (msgspec.json.decode(path.read_bytes(), type=Announcement) for path in spool.glob("rank-*-*.json"))
    return sorted(found, key=lambda announcement: (announcement.local_rank, announcement.restart))


def _temporary_folder(launch: Launch) -> Path:
    inside = launch.run / f"tmp-{launch.node}"
    if len(str(inside)) <= _SHORT:
        inside.mkdir(exist_ok=True)
        return inside
    return Path(tempfile.mkdtemp(prefix="mgd-", dir=launch.temporary))
