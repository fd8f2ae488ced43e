"""The supervisor and the guard with real processes: nothing of a job survives, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magneton_dist.cluster.processes import descendants, is_alive, look_up
from magneton_dist.cluster.supervisor import KILLED, STOP, arguments

GONE_S = 2.0


def marked(mark: str) -> list[int]:
    """Living processes whose environment carries `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            carries = entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if carries and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], limit_s: float) -> float:
    """Seconds until `condition` held; fails the test after `limit_s`."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - start_s


@dataclass
class Supervised:
    """A supervised shell script, and the agent's end of the pipe."""

    folder: Path
    mark: str = field(default_factory=lambda: f"mark-{uuid.uuid4().hex}")

    def start(self, script: str, *folders: Path) -> subprocess.Popen[bytes]:
        ours, self.pipe = os.pipe()
        command = ["sh", "-c", script]
        self.front = subprocess.Popen(
            arguments(ours, list(folders), command),
            pass_fds=(ours,),
            start_new_session=True,
            env={**os.environ, "MARK": self.mark},
            cwd=self.folder,
        )
        os.close(ours)
        return self.front

    def started(self) -> None:
        """Wait until the script has written the file ``ready``."""
        wait_until((self.folder / "ready").exists, 20.0)

    def supervisor(self) -> int:
        [pid] = [p.pid for p in descendants(self.front.pid) if p.parent == self.front.pid]
        return pid

    def gone(self, limit_s: float = GONE_S) -> float:
        return wait_until(lambda: not marked(self.mark), limit_s)

    def end(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.front.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path)
    yield supervised
    supervised.end()


# a process of its own session, a child of a child, and one that ignores SIGTERM
CROWD = "setsid sleep 600 & (sleep 601 & sleep 602 &) ; (trap '' TERM; sleep 603) & touch ready; sleep 604"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", KILLED), ("kill -11 $$", 139)]
)
def test_the_exit_code_is_the_job_s(job: Supervised, script: str, code: int) -> None:
    assert job.start(script).wait(20) == code


def test_a_program_that_is_not_there_is_said_on_stderr(tmp_path: Path) -> None:
    ours, pipe = os.pipe()
    front = subprocess.run(
        arguments(ours, [], ["no-such-program"]), pass_fds=(ours,), stderr=subprocess.PIPE, check=False
    )
    os.close(ours)
    os.close(pipe)
    assert front.returncode == 127
    assert front.stderr == b"no-such-program: No such file or directory\n"


def test_what_a_finished_job_leaves_behind_is_ended(job: Supervised, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (temporary / "left").touch()
    assert job.start(CROWD.replace("sleep 604", "exit 5"), temporary).wait(20) == 5
    assert marked(job.mark) == []
    assert not temporary.exists()


def test_stop_is_polite_first(job: Supervised, tmp_path: Path) -> None:
    job.start("trap 'touch asked; exit 9' TERM; touch ready; while :; do sleep 0.05; done")
    job.started()
    os.write(job.pipe, STOP)
    assert job.front.wait(20) == 9
    assert (tmp_path / "asked").exists()
    assert marked(job.mark) == []


def test_a_job_that_does_not_listen_is_gone_within_2_s(job: Supervised) -> None:
    job.start(f"trap '' TERM; {CROWD}")
    job.started()
    os.write(job.pipe, STOP)
    job.gone()
    assert job.front.wait(20) == KILLED


def test_the_job_dies_with_its_agent(job: Supervised) -> None:
    job.start(CROWD)
    job.started()
    os.close(job.pipe)  # what the kernel does when the agent is killed
    job.gone()


def test_the_job_dies_with_its_supervisor(job: Supervised) -> None:
    job.start(CROWD)
    job.started()
    os.kill(job.supervisor(), signal.SIGKILL)
    job.gone()
    assert job.front.wait(20) == KILLED


def test_a_killed_front_leaves_the_job_to_the_supervisor(job: Supervised) -> None:
    job.start(CROWD)
    job.started()
    job.front.kill()
    job.front.wait()
    assert marked(job.mark)
    os.close(job.pipe)
    job.gone()


def test_the_job_can_be_interrupted_though_its_agent_blocks_sigint(job: Supervised, tmp_path: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        job.start("grep -E 'SigBlk|SigIgn' /proc/self/status > masks")
        assert job.front.wait(20) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    masks = [int(line.split()[1], 16) for line in (tmp_path / "masks").read_text().splitlines()]
    # what whoever started the tests had ignored, such as SIGHUP by nohup, stays so; Python's own two do not
    status = Path("/proc/self/status").read_text()  # a C library's own signals are none that Python knows
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    inherited = ignored & ~sum(1 << (s - 1) for s in (signal.SIGPIPE, signal.SIGXFSZ))
    assert masks == [0, inherited]


HOLD = """
import mmap, os, sys, time
path = sys.argv[1]
file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(file, 4096)
hold = mmap.mmap(file, 4096)
open(sys.argv[2], "w").close()
time.sleep(600)
"""


def test_shared_memory_of_a_killed_job_is_freed_and_others_is_not(job: Supervised, tmp_path: Path) -> None:
    own, shared, old = (Path(f"/dev/shm/torch_{uuid.uuid4().hex}") for _ in range(3))
    data = Path(f"/dev/shm/my-dataset-{uuid.uuid4().hex}")
    old.write_bytes(b"the user's, from before")
    hold = f"{sys.executable} -c '{HOLD}'"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(shared), str(tmp_path / "other")])
    try:
        wait_until((tmp_path / "other").exists, 20.0)
        files = {"own": own, "shared": shared, "old": old, "data": data}
        job.start(" ".join(f"{hold} {file} {name} &" for name, file in files.items()) + " wait")
        wait_until(lambda: all((tmp_path / name).exists() for name in files), 20.0)
        os.write(job.pipe, STOP)
        job.front.wait(20)
        assert not own.exists()
        assert shared.exists()
        assert old.exists()  # it was there before the job
        assert data.exists()  # no framework calls its segments so: it may be all that the user has of it
    finally:
        other.kill()
        other.wait()
        for file in (own, shared, old, data):
            file.unlink(missing_ok=True)


# --- the guard ----------------------------------------------------------------------------------------------

GUARD = "from magneton_dist.cluster.guard import main; main()"


def guarded(mark: str, script: str, folder: Path) -> subprocess.Popen[bytes]:
    shell = "/bin/sh"
    return subprocess.Popen(
        [sys.executable, "-c", GUARD, shell, "-c", script],
        env={**os.environ, "MARK": mark, "TMPDIR": "/tmp"},
        cwd=folder,
        start_new_session=True,
    )


def session_folders(mark: str) -> list[str]:
    """Temporary folders of the guards that carry `mark`."""
    found = set()
    for pid in marked(mark):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"MAGNETON_DIST_SESSION="):
                found.add(entry.split(b"=", 1)[1].decode())
    return sorted(found)


@pytest.mark.parametrize("end", ["exit 7", "kill -9 $$"])
def test_nothing_survives_the_driver(tmp_path: Path, end: str) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    guard = guarded(mark, f"setsid sleep 600 & touch ready; while [ ! -e go ]; do sleep 0.05; done; {end}", tmp_path)
    wait_until((tmp_path / "ready").exists, 20.0)
    [folder] = session_folders(mark)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    (tmp_path / "go").touch()
    assert guard.wait(20) == (7 if end == "exit 7" else KILLED)
    assert marked(mark) == []
    assert not Path(folder).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_driver(tmp_path: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever started the tests has it ignored")
    mark = f"mark-{uuid.uuid4().hex}"
    name = number.name.removeprefix("SIG")
    guard = guarded(mark, f"trap 'exit 44' {name}; touch ready; while :; do sleep 0.05; done", tmp_path)
    wait_until((tmp_path / "ready").exists, 20.0)
    guard.send_signal(number)
    assert guard.wait(20) == 44
    assert marked(mark) == []


def test_a_killed_guard_asks_the_driver_to_end(tmp_path: Path) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    clean = "touch asked; rmdir $MAGNETON_DIST_SESSION; exit 0"  # a driver leaves its session by itself
    script = f"trap '{clean}' TERM; touch ready; while :; do sleep 0.05; done"
    guard = guarded(mark, script, tmp_path)
    wait_until((tmp_path / "ready").exists, 20.0)
    guard.kill()
    guard.wait()
    wait_until(lambda: not marked(mark), GONE_S)
    assert (tmp_path / "asked").exists()


def test_a_pid_used_again_is_another_process() -> None:
    me = look_up(os.getpid())
    assert me is not None
    assert is_alive(me.pid, me.start_ticks)
    assert not is_alive(me.pid, me.start_ticks + 1)


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    wait_until(lambda: (look := look_up(child.pid)) is not None and look.state == "Z", 20.0)
    assert not is_alive(child.pid)
    child.wait()
