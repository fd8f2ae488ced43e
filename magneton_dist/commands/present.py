"""What `launch` and `audit` leave and print: the result as JSON, a page and terminal text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magneton_dist.audits import Outcome

RESULT, PAGE = "audit.json", "report.html"


def present(outcome: Outcome, *, as_json: bool, quiet: bool) -> None:
    """Write `audit.json` and `report.html` into the record; print the report, the JSON or what was written.

    What a failed job printed last goes to stderr, so that its own error stays visible.
    """
    from rich.console import Console

    from magneton_dist.reports.terminal import render_terminal

    for variant, text in outcome.output.items():
        sys.stderr.write(f"--- {variant} failed; the end of its output:\n{text.rstrip()}\n---\n")
    write(outcome)
    if as_json:
        sys.stdout.write((outcome.folder / RESULT).read_text(encoding="utf-8"))
        return
    console = Console(highlight=False)
    if not quiet:
        render_terminal(outcome.audit, console)
    for name in (RESULT, PAGE):
        console.print(f"Wrote {_near(outcome.folder / name)}", markup=False, soft_wrap=True)


def show(outcome: Outcome, *, as_json: bool, page: Path | None) -> None:
    """Print the report or the JSON of an outcome that belongs into no record, and write `page` if it is given."""
    import msgspec
    from rich.console import Console

    from magneton_dist.reports.html import write_html
    from magneton_dist.reports.terminal import render_terminal

    if page is not None:
        write_html(outcome.audit, outcome.runs, page)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome.audit), indent=2).decode() + "\n")
        return
    console = Console(highlight=False)
    render_terminal(outcome.audit, console)
    if page is not None:
        console.print(f"Wrote {_near(page)}", markup=False, soft_wrap=True)


def write(outcome: Outcome) -> None:
    """Write `audit.json` and `report.html` into the record."""
    from magneton_dist.reports.audit_json import write_audit_json
    from magneton_dist.reports.html import write_html

    write_audit_json(outcome.audit, outcome.folder / RESULT)
    write_html(outcome.audit, outcome.runs, outcome.folder / PAGE)


def _near(path: Path) -> Path:
    """`path` from here, when it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
