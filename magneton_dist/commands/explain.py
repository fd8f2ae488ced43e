"""`magneton-dist explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="Folder that launch left.")],
    which: Annotated[
        str, typer.Argument(metavar="FINDING", help="Its number in the report, its kind, or region:N.")
    ] = "1",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time it may take: 90s, 2m.")] = "2m",
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON instead.")] = False,
) -> None:
    """Find the cause of a finding, prove it, and say what to type.

    Operators that both variants call are made again in fresh processes, with every difference between the variants
    flipped on its own: settings of torch, environment, arguments. Only what makes the difference alone, and without
    which it is gone, is called proved. audit.json and report.html in the record get the cause.
    """
    import sys

    import msgspec
    from rich.console import Console

    from magneton_dist.commands.present import write
    from magneton_dist.config import seconds_of
    from magneton_dist.errors import InputError
    from magneton_dist.explanations import explain as find
    from magneton_dist.reports.terminal import render_finding

    limit_s = seconds_of(budget)
    if limit_s is None or limit_s <= 0:
        raise InputError(f"is no time: {budget}", where="--budget", do="say 90s or 2m")
    told = Console(stderr=True, highlight=False)
    with told.status("Reading the record") as status:
        outcome, found = find(record, which, limit_s, lambda text: status.update(text))
    write(outcome)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        render_finding(found, Console(highlight=False))
