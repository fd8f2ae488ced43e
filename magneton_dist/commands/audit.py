"""`magneton-dist audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="Folder that launch left.")],
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Model the watts with this profile instead.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No report, only what was written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the report.")] = False,
) -> int:
    """Analyse a record again, without running anything."""
    from magneton_dist import audits
    from magneton_dist.commands.launch import exit_code
    from magneton_dist.commands.present import present
    from magneton_dist.meters import load_profile

    outcome = audits.audit(record, None if profile is None else load_profile(profile))
    present(outcome, as_json=as_json, quiet=quiet)
    return exit_code(outcome.audit)
