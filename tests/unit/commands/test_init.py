from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.commands import run
from magneton_dist.config import load

WORDS = ["--", "torchrun", "--nproc-per-node", "2", "train.py", "--force", "--", "-o"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def test_it_writes_what_launch_reads(capsys):
    assert run(["init", *WORDS]) == 0
    assert capsys.readouterr().out == "Wrote audit.yaml\n"
    job = load("audit.yaml").variants["job"]
    assert (job.torchrun.nproc_per_node, job.args) == (2, ("--force", "--", "-o"))
    assert "magneton-dist launch audit.yaml --dry-run" in Path("audit.yaml").read_text()


def test_only_its_owner_may_read_it(capsys):
    assert run(["init", *WORDS]) == 0
    assert Path("audit.yaml").stat().st_mode & 0o077 == 0


def test_it_does_not_overwrite_unless_told(capsys):
    Path("mine.yaml").write_text("keep")
    assert run(["init", "-o", "mine.yaml", *WORDS]) == 2
    error = "magneton-dist: error: mine.yaml: exists already (give --force, or another --output)\n"
    assert capsys.readouterr().err == error
    assert Path("mine.yaml").read_text() == "keep"
    assert run(["init", "-o", "mine.yaml", "--force", *WORDS]) == 0
    assert load("mine.yaml").name == "train"


def test_a_folder_that_is_not_there(capsys):
    assert run(["init", "-o", "no/such.yaml", *WORDS]) == 2
    error = "magneton-dist: error: no/such.yaml: cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == error
