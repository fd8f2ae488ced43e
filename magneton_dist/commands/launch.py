"""`magneton-dist launch`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magneton_dist.errors import InputError

if TYPE_CHECKING:
    from magneton_dist.records.audit import Audit, Comparison

AUDITED, FAILED, INCOMPLETE, WASTE = 0, 1, 3, 4


def launch(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What to audit: a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key: repeats=6, 'variants.a.args+=[--x, 1]'."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A running Ray cluster (or auto); default: this machine."),
    ] = None,
    fail_on_waste: Annotated[
        float | None,
        typer.Option(
            metavar="PCT", min=0, max=100, help="Exit with 4 when waste of at least PCT % is found."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress and no report, only what was written.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the report.")] = False,
) -> int:
    """Run a job in its variants and say where the joules went, why, and what to change.

    Exit codes: 0 audited; 3 audited, with ranks or records missing; 4 waste of at least PCT % was found;
    2 the input is wrong; 1 anything else. Ctrl-C ends the job at once and keeps what was recorded (130).
    """
    from magneton_dist.config import load, plan

    loaded = load(config, overrides or [])
    if dry_run:
        if as_json:
            raise InputError("--dry-run prints a plan, not audit.json", do="leave out --json")
        typer.echo(plan(loaded))
        return AUDITED

    from magneton_dist.cluster import guard

    guard.enter(sys.argv[1:])  # starts this program anew, so before anything that is slow to load

    from rich.console import Console

    from magneton_dist import audits
    from magneton_dist.commands.present import present
    from magneton_dist.explanations import explain_costliest
    from magneton_dist.reports.progress import ProgressView

    console = Console(stderr=True, highlight=False, quiet=quiet)
    with ProgressView(console) as show:
        outcome = audits.launch(loaded, address=address, on_progress=show)
    if not outcome.interrupted:
        with console.status("Looking for causes") as status:
            jobs = loaded.variants if address is None else {}  # this machine may not be like the cluster's
            outcome = explain_costliest(outcome, loaded.diagnose.budget, status.update, jobs)
    present(outcome, as_json=as_json, quiet=quiet)
    if outcome.interrupted:
        return 128 + signal.Signals[outcome.interrupted]
    return exit_code(outcome.audit, fail_on_waste)


def exit_code(audit: Audit, fail_on_waste: float | None = None) -> int:
    """What `launch` exits with; `fail_on_waste` is in percent of the hungrier variant's joules."""
    if not any(variant.runs for variant in audit.variants.values()):
        return FAILED
    if audit.missing or any(code for variant in audit.variants.values() for code in variant.exit_codes):
        return INCOMPLETE
    if fail_on_waste is None:
        return AUDITED
    return WASTE if max(_wasted_shares(audit), default=-1.0) * 100 >= fail_on_waste else AUDITED


def _wasted_shares(audit: Audit) -> list[float]:
    """Shares of joules called waste: by comparison where there is one, by finding in a variant alone."""
    if audit.comparison is None:
        wasteful = [finding for finding in audit.findings if finding.kind != "trade-off"]
        return [finding.share for finding in wasteful if finding.share is not None]
    compared = [audit.comparison, *audit.other_comparisons]
    return [share for c in compared if c.verdict == "waste" and (share := _wasted_share(c)) is not None]


def _wasted_share(comparison: Comparison) -> float | None:
    """What the wasteful variant burns more than the other, as a share of its own joules; negative if it burns less."""
    saved = comparison.saved_share
    if saved is None or comparison.hungrier in (None, comparison.baseline):
        return saved
    return -saved / (1 - saved)  # of the candidate's joules
