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
    WAITS = "waits"
    STATES = "states"
    PROMETHEUS = "prometheus"


_FILES = {
    Format.PERFETTO: "trace.json.gz", Format.KERNELS: "kernels.csv", Format.WAITS: "waits.csv",
    Format.STATES: "states.csv", Format.PROMETHEUS: "metrics.prom",
}  # fmt: skip


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one run: RECORD/VARIANT/REPEAT.")],
    to: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.PERFETTO,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: in the run's folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a run for another program.

    perfetto: a trace for https://ui.perfetto.dev (gzip, unless the file's name ends in .json). kernels: a CSV of what
    ran on each rank's device under one name, with its joules, their bounds, and rows for gaps and idling, where
    kernels were captured. waits: a CSV of every collective call, how long it waited and for whom. states: a CSV of
    what every rank's device was doing when. prometheus: seconds, joules, waits and idling of every rank as metrics.
    """
    from magneton_dist import drawn_runs
    from magneton_dist.errors import InputError
    from magneton_dist.kernel_costs import kernel_costs
    from magneton_dist.reports.audit_json import write_atomically
    from magneton_dist.reports.perfetto import write_perfetto
    from magneton_dist.reports.prometheus import prometheus_text
    from magneton_dist.reports.tables import csv, state_table, wait_table

    path = output or run / _FILES[to]
    if path.exists() and not force:
        raise InputError("exists already", where=str(path), do="give --force, or another --output")
    if to is Format.PERFETTO:
        write_perfetto(drawn_runs.bands(run), path)
    elif to is Format.PROMETHEUS:
        write_atomically(path, prometheus_text(*drawn_runs.summaries(run)).encode())
    elif to is Format.KERNELS:
        write_atomically(path, csv(kernel_costs(run)))
    else:
        table = wait_table if to is Format.WAITS else state_table
        write_atomically(path, csv(table(drawn_runs.bands(run))))
    typer.echo(f"Wrote {path}")
