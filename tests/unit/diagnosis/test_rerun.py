from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from magneton_dist.cluster.processes import is_alive
from magneton_dist.config import Job, Torchrun
from magneton_dist.diagnosis.rerun import CannotRerunError, Watched, lines_of

JOB = """
import os, sys
from pathlib import Path

def chosen(kind):
    if kind == "a":
        return 1
    return 2

chosen(sys.argv[1])
Path(sys.argv[2], f"went-on-{os.environ['RANK']}").touch()
"""


def job(tmp_path: Path, *args: str) -> Job:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    return Job(script=str(script), torchrun=Torchrun(nproc_per_node=2), cwd=str(tmp_path), args=args)


@pytest.mark.timeout(300)
def test_the_lines_of_one_rank_are_seen_and_the_job_is_private(tmp_path: Path) -> None:
    made = job(tmp_path, "b", "{run_dir}")
    frame = lines_of("b", made, 1, Watched(str(made.script), "chosen", None, 8), 120.0)
    assert [line.line for line in frame.lines] == [6, 8]
    assert frame.lines[0].values == {"kind": "'b'"}
    assert (frame.function, frame.outer[0].function, frame.outer[0].lines[0].line) == ("chosen", "<module>", 10)
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]


@pytest.mark.timeout(300)
def test_a_place_that_is_not_reached_is_said(tmp_path: Path) -> None:
    made = job(tmp_path, "a", "{run_dir}")
    with pytest.raises(CannotRerunError, match=r"ended \(0\) before it came to the place"):
        lines_of("a", made, 0, Watched(str(made.script), "elsewhere", None, 8), 120.0)


@pytest.mark.timeout(300)
def test_nothing_is_left_of_a_job_that_leaves_others_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell of rank 0 starts a process in a session of its own, which the shell does not wait for."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = job(tmp_path, "b", "{run_dir}")
    line = f"setsid sleep 977 & echo $! > {tmp_path}/pid"
    script = Path(str(made.script))
    script.write_text(f"import subprocess; subprocess.run({line!r}, shell=True)\n{JOB}")
    lines_of("b", made, 1, Watched(str(script), "chosen", None, 9), 120.0)
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("other", [{"command": ("srun", "x")}, {"torchrun": Torchrun(nnodes=2)}])
def test_jobs_of_other_launchers_or_nodes_are_not_run_again(other: dict[str, object], tmp_path: Path) -> None:
    made = job(tmp_path).model_copy(update=other)
    with pytest.raises(CannotRerunError, match="only jobs that torchrun starts on one node"):
        lines_of("a", made, 0, Watched("x.py", "f", 1), 1.0)
