"""Runs the jobs of an audit again, each until its lines below one place were seen.

What is run is what the user's configuration says, never what a record says.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from magneton_dist.cluster.processes import Process, adopt_orphans, descendants, end, shared_files
from magneton_dist.config import Job, command_line, environment
from magneton_dist.diagnosis.frames import Frame
from magneton_dist.diagnosis.lines import WANTED
from magneton_dist.errors import MagnetonError
from magneton_dist.tracer.environment import CAPTURE, SPOOL, TOKEN, launch_environment
from magneton_dist.tracer.environment import SITE as TRACER_SITE

SITE = Path(__file__).parent / "site"
LIMIT_S = 90.0  # of one job
GRACE_S = 5.0  # for its processes to be gone, once they were killed
PERIOD_S = 0.1


@dataclass(frozen=True)
class Watched:
    """What to watch: a statement with all that it calls, or (`line` is None) a function alone until line `until`."""

    file: str
    function: str
    line: int | None
    until: int | None = None


class CannotRerunError(MagnetonError):
    """A job cannot be run again here, or what was to be seen of it was not."""


def lines_of(variant: str, job: Job, rank: int, watched: Watched, limit_s: float) -> Frame:
    """The lines that rank `rank` of `job` takes at the place that is watched, the first time it comes there.

    The job runs in a private folder of its own ({run_dir}, TMPDIR) that is deleted, and is ended when they were seen.

    Args:
        variant: its name.
        job: of the user's configuration.
        rank: whose lines.
        watched: where.
        limit_s: time that this may take.

    Raises:
        CannotRerunError: it is not started by torchrun on one node, ended before it came there, or took too long.
    """
    if job.command is not None or job.torchrun.nnodes > 1:
        raise CannotRerunError("only jobs that torchrun starts on one node are run again", where=variant)
    with tempfile.TemporaryDirectory(prefix="magneton-lines-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        found = folder / "lines.json"
        values = {"run_dir": name, "variant": variant, "repeat": "0", "seed": str(job.seed)}
        wanted = json.dumps({**asdict(watched), "rank": rank, "path": str(found)})
        armed = _environment(environment(job, values) | {"TMPDIR": name}, wanted)
        with _ended():
            process = subprocess.Popen(
                command_line(job, values), env=armed, cwd=job.cwd, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            _wait(process, found, variant, time.monotonic() + min(limit_s, LIMIT_S))
            return Frame.of(json.loads(found.read_bytes()))


def _environment(own: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Of the job, with what arms the watching in the tracer's place: two start-up hooks would call each other."""
    armed = launch_environment(os.environ | own, "", "", {})
    paths = [path for path in armed["PYTHONPATH"].split(os.pathsep) if path != TRACER_SITE]
    for name in (SPOOL, TOKEN, CAPTURE):
        del armed[name]
    return armed | {"PYTHONPATH": os.pathsep.join([str(SITE), *paths]), WANTED: wanted}


def _wait(process: subprocess.Popen[bytes], found: Path, variant: str, end_s: float) -> None:
    while not found.exists():
        ended = process.poll()
        if ended is not None and not found.exists():
            raise CannotRerunError(f"ended ({ended}) before it came to the place", where=variant)
        if time.monotonic() > end_s:
            raise CannotRerunError("did not come to the place in time", where=variant)
        time.sleep(PERIOD_S)


@contextmanager
def _ended() -> Iterator[None]:
    """Whatever is started in here ends with it, also what its own parent has left behind."""
    before, files = {_name(process) for process in descendants(os.getpid())}, shared_files()

    def started() -> list[Process]:
        return [process for process in descendants(os.getpid()) if _name(process) not in before]

    adopt_orphans()
    try:
        yield
    finally:
        seen = started()
        end(started, files, GRACE_S)
        adopt_orphans(False)
        for process in seen:  # those that became children of this process
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _name(process: Process) -> tuple[int, int]:
    """What tells a process from one that has its pid later."""
    return process.pid, process.start_ticks
