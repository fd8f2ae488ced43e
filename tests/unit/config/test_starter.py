"""A configuration written from a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magneton_dist.config import Job, Torchrun, load
from magneton_dist.config.starter import starter
from magneton_dist.errors import InputError


@pytest.fixture
def started(folder, monkeypatch):
    """The job that a command line becomes, through the written file; its torchrun is that of this environment."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))

    def job(*words: str) -> Job:
        Path("s.yaml").write_text(starter(words), encoding="utf-8")
        config = load("s.yaml")
        assert list(config.variants) == ["job"]
        return config.variants["job"]

    return job


def test_a_torchrun_command_line(started, folder):
    job = started(
        "OMP_NUM_THREADS=1", "torchrun", "--standalone", "--nproc_per_node=2", "--max-restarts", "3",
        "--tee", "3", "train.py", "--lr", "1e-3", "--", "-x",
    )  # fmt: skip
    assert job.torchrun == Torchrun(nproc_per_node=2, max_restarts=3, extra=("--tee", "3"))
    assert (job.script, job.args) == ("train.py", ("--lr", "1e-3", "--", "-x"))
    assert (job.env, job.python, job.cwd) == ({"OMP_NUM_THREADS": "1"}, None, str(folder))


def test_a_module_on_two_nodes_is_placed_by_the_audit(started):
    words = ["torchrun", "--nnodes", "2:2", "--node-rank=1", "--rdzv-endpoint", "h:1", "-m", "pkg.train", "a"]
    job = started(*words)
    assert (job.module, job.args) == ("pkg.train", ("a",))
    assert job.torchrun == Torchrun(nnodes=2)
    text = Path("s.yaml").read_text()
    assert text.count("# Note: left out --node-rank 1: the audit places nodes itself\n") == 1
    assert text.count("# Note: left out --rdzv-endpoint h:1: the audit places nodes itself\n") == 1


def test_this_python_needs_no_mention_and_another_is_kept(started, folder):
    assert started(sys.executable, "-m", "torch.distributed.run", "train.py").python is None
    other = folder / "env" / "bin"
    other.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (other / name).write_text("#!/bin/sh\n")
        (other / name).chmod(0o755)
    assert started(f"{other}/torchrun", "train.py").python == f"{other}/python"
    assert started(f"{other}/python", "-m", "torch.distributed.run", "train.py").python == f"{other}/python"


def test_any_other_command_is_kept_whole(started):
    job = started("srun", "-n", "2", "python", "train.py", "{x}")
    assert job.command == ("srun", "-n", "2", "python", "train.py", "{{x}}")
    assert "# Note: set nproc_per_node" in Path("s.yaml").read_text()


def test_the_name_is_safe(folder):
    Path("a b;c.v2.py").touch()
    assert "\nname: a-b-c-v2\n" in starter(["torchrun", "a b;c.v2.py"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_arguments_come_back_exactly(started, words):
    from magneton_dist.config import expand

    job = started("torchrun", "train.py", *words)
    assert [expand(text, {}) for text in job.args] == words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command line (magneton-dist init -- torchrun --nproc-per-node 2 train.py)"),
        (["A=1"], "no command line (magneton-dist init -- torchrun --nproc-per-node 2 train.py)"),
        (["torchrun"], "torchrun would refuse: the following arguments are required: training_script, "
         "training_script_args"),
        (["torchrun", "--nproc-per-node", "x", "train.py"],
         "--nproc-per-node x: Unsupported nproc_per_node value: x (give the number of ranks)"),
        (["torchrun", "--nnodes", "1:4", "train.py"], "--nnodes 1:4 is not one number "
         "(an audit needs the same ranks in every run: give one number)"),
        (["torchrun", "gone.py"], "there is no file 'gone.py' (looked in FOLDER)"),
    ],
)  # fmt: skip
def test_refused(folder, words, message):
    with pytest.raises(InputError) as caught:
        starter(words)
    assert str(caught.value) == message.replace("FOLDER", str(folder))
