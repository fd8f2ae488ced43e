"""One node's part of a job: its environment, its command line, and what is checked before it starts."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from magneton_dist.config import Job, command_line, environment, expand
from magneton_dist.errors import InputError
from magneton_dist.tracer.environment import launch_environment

OUTPUT = "output.log"

_FAILED = re.compile(r"exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_OURS = "MAGNETON_DIST_"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a node agent needs to start its part of the job.

    Attributes:
        job: the variant.
        run: folder of the run, the same path on every node.
        values: of the placeholders.
        environment: the driver's, not the Ray worker's.
        cwd: the folder the audit was started in.
        capture: settings of the tracer.
        token: arms the tracer in this job only.
        origin: text of the run folder's origin file where the folder is the driver's own.
        node: number of this node.
        devices: CUDA_VISIBLE_DEVICES of the node, None to leave it alone.
        rendezvous: torchrun's options for meeting other nodes, empty on one node.
        temporary: existing private folder for temporary folders, None for the system's.
    """

    job: Job
    run: Path
    values: Mapping[str, str]
    environment: Mapping[str, str]
    cwd: Path
    capture: Mapping[str, object]
    token: str
    origin: str
    node: int = 0
    devices: str | None = None
    rendezvous: tuple[str, ...] = ()
    temporary: Path | None = None

    @property
    def spool(self) -> Path:
        """Where the tracer of this node's ranks writes."""
        return self.run / "spool" / str(self.node)

    @property
    def output(self) -> Path:
        """What the job of this node prints."""
        return self.run / (OUTPUT if self.node == 0 else f"output-{self.node}.log")

    @property
    def folder(self) -> Path:
        """Where the job runs."""
        return self.cwd / expand(self.job.cwd or "", self.values)

    def command(self) -> list[str]:
        """Command line, placeholders filled in."""
        return command_line(self.job, self.values, self.rendezvous)

    def job_environment(self, temporary: Path) -> dict[str, str]:
        """Environment of the job: the driver's, the job's own on top, and what arms the tracer."""
        own = environment(self.job, self.values)
        base = {name: text for name, text in self.environment.items() if not name.startswith(_OURS)}
        base |= own | {"TMPDIR": str(temporary)}
        if self.devices is not None:
            base["CUDA_VISIBLE_DEVICES"] = self.devices
        armed = launch_environment(base, str(self.spool), self.token, self.capture)
        # what the user asks for by name wins over the scrubbing, except for the path that carries the tracer
        return armed | {name: text for name, text in own.items() if name != "PYTHONPATH"}

    def check(self) -> None:
        """Raise `InputError` for what can be known to fail before anything is started."""
        where = f"variant {self.values['variant']}"
        if self.folder.is_relative_to(self.run):  # a folder of its own for each run
            self.folder.mkdir(parents=True, exist_ok=True)
        if not self.folder.is_dir():
            raise InputError(f"no such folder: {self.folder}", where=f"{where}: cwd", do="create it or correct cwd")
        if self.job.script is not None and not (self.folder / self.job.script).is_file():
            raise InputError(
                f"no such script: {self.job.script}",
                where=f"{where}: script",
                do=f"give a path from {self.folder}",
            )
        program = self.command()[0]
        path = self.job_environment(self.run).get("PATH")
        if not (self.folder / program).is_file() and shutil.which(program, path=path) is None:
            raise InputError(f"no such program: {program}", where=where, do="install it or give its full path")
        port = self.job.torchrun.master_port
        if port is not None and self.node == 0 and self.job.command is None:
            check_port(port)


def exit_codes(output: str) -> dict[int, int]:
    """Exit code (negative: the signal) of each process, by pid, that torchrun's failure report names."""
    return {int(pid): int(code) for code, pid in _FAILED.findall(output)}


def check_port(port: int) -> None:
    """Raise `InputError` when `port` is taken on this host."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used on {socket.gethostname()}: {os.strerror(error.errno or 0)}",
                where="job.torchrun.master_port",
                do="choose a free port, or leave the key out",
            ) from error


def free_port() -> int:
    """A port that nobody on this host listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
