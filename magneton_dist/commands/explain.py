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
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="The file that launch was given: its variants may be run again."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Launch the finding's variant with the proved fix beside itself.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON instead.")] = False,
) -> None:
    """Find the cause of a finding, prove it, and say what to type.

    Operators that both variants call are made again in fresh processes, with every difference between the variants
    flipped on its own: settings of torch, environment, arguments. Only what makes the difference alone, and without
    which it is gone, is called proved. With --config, variants that part in Python code are started again until the
    condition was seen by which they part. audit.json and report.html in the record get the cause.

    --apply launches the variant that needs more, as it is and with the proved fix, and reports both: what is gained in
    the end. A fix that is an edit of your code is not made.
    """
    import sys

    import msgspec
    from rich.console import Console

    from magneton_dist.commands.present import write
    from magneton_dist.config import load, seconds_of
    from magneton_dist.errors import InputError
    from magneton_dist.explanations import explain as find
    from magneton_dist.reports.terminal import render_finding

    limit_s = seconds_of(budget)
    if limit_s is None or limit_s <= 0:
        raise InputError(f"is no time: {budget}", where="--budget", do="say 90s or 2m")
    loaded = None if config is None else load(config)
    jobs = {} if loaded is None else loaded.variants
    if apply:
        if loaded is None:
            raise InputError("--apply needs the file that launch was given", do="say it with --config")
        from magneton_dist.cluster import guard

        guard.enter(sys.argv[1:])  # starts this program anew
    told = Console(stderr=True, highlight=False)
    with told.status("Reading the record") as status:
        outcome, found = find(record, which, limit_s, lambda text: status.update(text), jobs)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        render_finding(found, Console(highlight=False))
    write(outcome)
    if apply and loaded is not None:
        from magneton_dist import audits
        from magneton_dist.commands.present import present
        from magneton_dist.diagnosis.applied import not_held, with_fix
        from magneton_dist.errors import MagnetonError
        from magneton_dist.reports.progress import ProgressView

        with ProgressView(told) as show:
            applied = audits.launch(with_fix(loaded, found), on_progress=show)
        if as_json:  # one document on standard output
            write(applied)
            told.print(f"Wrote {applied.folder}", markup=False, soft_wrap=True)
        else:
            present(applied, as_json=False, quiet=False)
        lost = not_held(applied.audit, found)
        if lost:
            raise MagnetonError(
                f"the fix did not hold: {', '.join(lost)}", where=str(applied.folder), do="see what sets it again"
            )
