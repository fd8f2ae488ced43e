"""Every error is one line on stderr, with the exit code of its kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from magneton_dist import commands, machine
from magneton_dist.commands import run
from magneton_dist.errors import ClusterError, ConfigError, MeterError


@pytest.fixture
def failing(monkeypatch):
    """Let `doctor` raise."""

    def raises(error: BaseException) -> None:
        def inspect() -> list[machine.Check]:
            raise error

        monkeypatch.setattr(machine, "inspect", inspect)

    return raises


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["launch"], "Missing argument 'CONFIG'."),
        (["lanch"], "No such command 'lanch'. Did you mean 'launch'?"),
        (["doctor", "--jsn"], "No such option: --jsn (Possible options: --json)"),
        (["launch", "gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        (["launch", "gone.yaml", "--fail-on-waste", "x"], "Invalid value for '--fail-on-waste': "
         "Input should be a valid number, unable to parse string as a number"),
        (["init"], "no command line (magneton-dist init -- torchrun --nproc-per-node 2 train.py)"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_code_2(capsys, monkeypatch, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"magneton-dist: error: {line}\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad", where="a.yaml:3: job.seed", do="mend it"), 2),
        (MeterError("bad", where="a.yaml:3: job.seed", do="mend it"), 1),
        (ClusterError("bad", where="a.yaml:3: job.seed", do="mend it"), 1),
    ],
)
def test_our_errors_have_their_own_codes(capsys, failing, error, code):
    failing(error)
    assert run(["doctor"]) == code
    assert capsys.readouterr().err == "magneton-dist: error: a.yaml:3: job.seed: bad (mend it)\n"


def test_what_a_terminal_would_obey_is_escaped(capsys, failing):
    failing(MeterError("two\r\n  lines, \x1b[31mred, \u202ereversed"))
    run(["doctor"])
    assert capsys.readouterr().err == "magneton-dist: error: two lines, \\x1b[31mred, \\u202ereversed\n"


def test_an_unexpected_error_keeps_its_traceback(capsys, failing, tmp_path, monkeypatch):
    monkeypatch.setattr(commands.tempfile, "tempdir", str(tmp_path))
    failing(KeyError("x"))
    assert run(["doctor"]) == 1
    (kept,) = tmp_path.iterdir()
    assert (
        capsys.readouterr().err == f"magneton-dist: error: unexpected KeyError: 'x' (traceback in {kept})\n"
    )
    assert kept.read_text().startswith("Traceback (most recent call last):\n")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_interruption_is_130(capsys, failing):
    failing(KeyboardInterrupt())
    assert run(["doctor"]) == 130
    assert capsys.readouterr().err == "magneton-dist: interrupted\n"


@pytest.mark.parametrize("error", ["TypeError('lost in native code')", "RecordError('cannot be written')"])
def test_ctrl_c_that_a_library_swallows_is_still_130(error):
    code = (
        "import os, signal, sys; from magneton_dist import machine; from magneton_dist.commands import main\n"
        "from magneton_dist.errors import RecordError\n"
        "def inspect():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(10**6)]\n"
        f"    except KeyboardInterrupt: raise {error} from None\n"
        "machine.inspect = inspect; sys.argv[1:] = ['doctor']; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (130, "magneton-dist: interrupted\n")


def test_once_all_is_told_ctrl_c_changes_nothing():
    code = (
        "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT);"
        "from magneton_dist.commands import main; sys.argv[1:] = ['--version']; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_arguments_it_shows_its_help(capsys):
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_every_command_has_help(capsys):
    for name in ("launch", "init", "doctor", "audit", "compare", "export"):
        assert run([name, "--help"]) == 0
        assert f"Usage: magneton-dist {name} " in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from magneton_dist.commands import run; run(['--help']);"
        "print([m for m in ('torch', 'ray', 'polars', 'numpy', 'pydantic', 'jinja2') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert ended.stdout.splitlines()[-1] == "[]"


def test_it_runs_as_a_module(tmp_path: Path):
    words = [sys.executable, "-m", "magneton_dist.commands", "launch", "gone.yaml"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "magneton-dist: error: gone.yaml: cannot be read: No such file or directory\n"
