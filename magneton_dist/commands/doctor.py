"""`magneton-dist doctor`."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what works on this machine, and why the rest does not.

    Exits with 1 when an audit could not run here at all.
    """
    from magneton_dist.machine import inspect

    checks = inspect()
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(checks), indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{'works ' if check.works else 'absent'}  {check.name:<{width}}  {check.found}")
    return 0 if all(check.works for check in checks if check.needed) else 1
