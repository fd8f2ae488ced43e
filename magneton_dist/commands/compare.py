"""`magneton-dist compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

By = Literal["energy", "time", "memory", "values"]


def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The baseline: a run, a variant or an audit of one.")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B", help="What is compared with it.")],
    by: Annotated[By | None, typer.Option(help="What decides; default: as in the audit of RUN_A.")] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Model the watts with this profile instead.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page, too.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (as audit.json) instead of the report.")] = False,
) -> int:
    """Compare two records, without running anything: totals, and region by region.

    RUN_A and RUN_B are folders below what launch left: RECORD/VARIANT/REPEAT, RECORD/VARIANT with all its repeats,
    or RECORD where it holds one variant. They may be of different audits.
    """
    from magneton_dist import comparisons
    from magneton_dist.commands.launch import exit_code
    from magneton_dist.commands.present import show
    from magneton_dist.errors import InputError
    from magneton_dist.meters import load_profile

    if html is not None and html.exists() and not force:
        raise InputError("exists already", where=str(html), do="give --force, or another --html")
    outcome = comparisons.compare_records(a, b, by=by, profile=None if profile is None else load_profile(profile))
    show(outcome, as_json=as_json, page=html)
    return exit_code(outcome.audit)
