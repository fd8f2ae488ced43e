"""The command line: one file per subcommand, whose docstring is its help. No logic lives here."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from magneton_dist.commands.audit import audit
from magneton_dist.commands.calibrate import calibrate
from magneton_dist.commands.compare import compare
from magneton_dist.commands.doctor import doctor
from magneton_dist.commands.explain import explain
from magneton_dist.commands.export import export
from magneton_dist.commands.init import init
from magneton_dist.commands.launch import launch
from magneton_dist.commands.replay import replay
from magneton_dist.errors import MagnetonError

NAME = "magneton-dist"
INTERRUPTED = 130  # as shells say it: 128 + SIGINT

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(name=NAME, rich_markup_mode=None, add_completion=False, context_settings=_SETTINGS)
for command in (launch, init, doctor, calibrate, audit, compare, explain, replay, export):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"{NAME} {version(NAME)}")
        raise typer.Exit


@app.callback()
def _about(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where the joules of a distributed training job went, why, and what to change.

    Exit codes: 0 done; 1 it failed; 2 the input is wrong; 3 audited, with ranks or records missing;
    4 waste found (launch --fail-on-waste); 130 interrupted.
    """


def main() -> None:
    """Entry point of `magneton-dist`."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _interrupt)
    code = run(sys.argv[1:])
    if heard:  # All is told; what follows is Python's own end. One that hangs can be ended by a second Ctrl-C.
        signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.SIG_DFL))
    sys.exit(code)


_interrupts: list[int] = []  # signals that arrived


def _interrupt(number: int, _: object) -> None:
    """Note the interruption: where it is raised within a call from a library's native code, it is lost there."""
    _interrupts.append(number)
    raise KeyboardInterrupt


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Every error is one line on stderr."""
    try:
        code = app(list(arguments) or ["--help"], prog_name=NAME, standalone_mode=False)
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except MagnetonError as error:
        if not _interrupts:
            return _fail(str(error), error.exit_code)
        code = INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: say so, and keep the traceback
        if not _interrupts:
            return _fail(f"unexpected {type(error).__name__}: {error} (traceback in {_keep_traceback()})", 1)
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write(f"{NAME}: interrupted\n")
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    """Print `message` on one line, with nothing in it that a terminal would obey."""
    line = re.sub(r"\s*[\r\n]\s*", " ", message)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(f"{NAME}: error: {shown}\n".encode(encoding, "backslashreplace").decode(encoding))
    return code


def _keep_traceback() -> str:
    handle, path = tempfile.mkstemp(prefix=f"{NAME}-error-", suffix=".txt")
    with os.fdopen(handle, "w", errors="backslashreplace") as file:
        traceback.print_exc(file=file)
    return path
