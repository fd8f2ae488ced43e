"""What `launch` and `audit` leave and print: the result as JSON, a page and terminal text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magneton_dist.pipeline import Outcome

RESULT, PAGE = "audit.json", "report.html"


def present(outcome: Outcome, folder: Path, *, as_json: bool, quiet: bool) -> None:
    """Write `audit.json` and `report.html` into `folder`; print the report, the JSON or what was written."""
    from rich.console import Console

    from magneton_dist.reports.audit_json import write_audit_json
    from magneton_dist.reports.html import write_html
    from magneton_dist.reports.terminal import render_terminal

    write_audit_json(outcome.audit, folder / RESULT)
    write_html(outcome.audit, outcome.runs, folder / PAGE, outcome.settings)
    if as_json:
        sys.stdout.write((folder / RESULT).read_text(encoding="utf-8"))
        return
    console = Console(highlight=False)
    if not quiet:
        render_terminal(outcome.audit, console)
    for name in (RESULT, PAGE):
        console.print(f"Wrote {folder / name}", markup=False, soft_wrap=True)
