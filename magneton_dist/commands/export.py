"""`magneton-dist export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What a record can be exported as."""

    PERFETTO = "perfetto"
    KERNELS = "kernels"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one run: RECORD/VARIANT/REPEAT.")],
    to: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.PERFETTO,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: in the run's folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a run for another program.

    perfetto: a trace for https://ui.perfetto.dev. kernels: a CSV of what ran on each rank's device under one name,
    with its joules, their bounds, and rows for gaps and idling, where kernels were captured.
    """
    from magneton_dist import audits
    from magneton_dist.errors import InputError
    from magneton_dist.kernel_costs import kernel_costs
    from magneton_dist.reports.audit_json import write_atomically
    from magneton_dist.reports.perfetto import write_perfetto

    path = output or run / ("trace.json.gz" if to is Format.PERFETTO else "kernels.csv")
    if path.exists() and not force:
        raise InputError("exists already", where=str(path), do="give --force, or another --output")
    if to is Format.KERNELS:
        write_atomically(path, kernel_costs(run).write_csv().encode())
    else:
        write_perfetto(audits.bands(run), path)
    typer.echo(f"Wrote {path}")
