"""`magneton-dist export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What a record can be exported as."""

    PERFETTO = "perfetto"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one run: RECORD/VARIANT/REPEAT.")],
    to: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.PERFETTO,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: in the run's folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a run for another program: a trace for https://ui.perfetto.dev."""
    from magneton_dist import audits
    from magneton_dist.errors import InputError
    from magneton_dist.reports.perfetto import write_perfetto

    path = output or run / "trace.json.gz"
    if path.exists() and not force:
        raise InputError("exists already", where=str(path), do="give --force, or another --output")
    write_perfetto(audits.bands(run), path)
    typer.echo(f"Wrote {path}")
