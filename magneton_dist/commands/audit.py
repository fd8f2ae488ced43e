"""`magneton-dist audit`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from magneton_dist.meters import Profile


def audit(
    what: Annotated[
        list[str],
        typer.Argument(metavar="RECORD|TRACES", help="Folder that launch left; or traces: a folder, files or a glob."),
    ],
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Model the watts with this profile instead.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the record of traces is made.", show_default=True)
    ] = Path("runs"),
    rank_regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Its first group is the rank in a trace's path.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a trace for one damaged event.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No report, only what was written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the report.")] = False,
) -> int:
    """Analyse a record again, or the profiler traces of a job (one per rank), without running anything.

    Traces are what torch.profiler exports (Kineto, JSON or gzip). Damaged events are mended or left out, and
    counted; a trace that cannot be read is named, and the other ranks are audited.
    """
    from magneton_dist import audits
    from magneton_dist.commands.launch import exit_code
    from magneton_dist.commands.present import RESULT, present
    from magneton_dist.meters import load_profile
    from magneton_dist.records.store import is_record
    from magneton_dist.reports.figures import one_line

    watts = None if profile is None else load_profile(profile)
    recorded = len(what) == 1 and is_record(Path(what[0]))
    folder = Path(what[0]) if recorded else _record(what, out, watts, rank_regex, strict=strict)
    try:
        outcome = audits.audit(folder, watts if recorded else None)
        present(outcome, as_json=as_json, quiet=quiet)
    except BaseException:  # Ctrl-C first of all
        if not recorded and not (folder / RESULT).exists():
            name = one_line(shlex.quote(str(folder)))
            sys.stderr.write(f"The record of the traces is kept: magneton-dist audit {name}\n")
        raise
    return exit_code(outcome.audit)


def _record(
    given: list[str], out: Path, profile: Profile | None, rank_regex: str | None, *, strict: bool
) -> Path:
    from rich.console import Console
    from rich.progress import Progress

    from magneton_dist.traces import record_traces

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        reading = bar.add_task("Reading traces", total=None)
        return record_traces(
            given, out, profile=profile, rank_regex=rank_regex, strict=strict,
            on_file=lambda done, of: bar.update(reading, completed=done, total=of),
        )  # fmt: skip
