"""`magneton-dist replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="Folder of an audit, or of one run of it.")],
    budget: Annotated[str, typer.Option(metavar="TIME", help="Begin none that would not fit: 90s, 5m, 1h.")] = "5m",
    meter: Annotated[str, typer.Option("--meter", help="As in a configuration.")] = "auto",
    device: Annotated[
        list[str] | None, typer.Option("--device", help="GPU UUID or cpu, once for each; default: as it ran.")
    ] = None,
    window: Annotated[
        float | None, typer.Option(metavar="S", min=0.01, help="Seconds of each window; default: 10.")
    ] = None,
    only: Annotated[str, typer.Option(metavar="REGEX", help="Only operators and collectives of this name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what the operators and collectives of a record cost, by running each over and over.

    Those with most joules at stake come first. A window is 10 s, as power sensors are slow; at least five of them
    are taken, up to twelve while the interval is wider than 1 %, and it is inconclusive otherwise. Nothing else may
    run on the device meanwhile. `magneton-dist audit RECORD` takes what was replayed into its regions.
    """
    import signal

    from rich.console import Console
    from rich.progress import Progress

    from magneton_dist import replays
    from magneton_dist.energy.replay.run import Progress as Moment
    from magneton_dist.reports.progress import duration

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the processes and their folder go, too
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Replaying", total=None)

        def show(moment: Moment) -> None:
            text = f"Replaying {moment.name}, {duration(moment.left_s)} left"
            bar.update(task, description=text, completed=moment.done, total=moment.planned)

        found = replays.replay(
            record, meter=meter, devices=device or (), budget_s=_seconds(budget), window_s=window, only=only,
            on_progress=show,
        )  # fmt: skip
    if as_json:
        import msgspec

        rows = [{**row, "variants": sorted(variants)} for row, variants in found.rows]
        whole = {"rows": rows, "left_out": found.left_out, "notes": found.notes}
        typer.echo(msgspec.json.format(msgspec.json.encode(whole), indent=2))
    else:
        from magneton_dist.reports.replayed import render_replays

        render_replays(found, Console(highlight=False))


def _seconds(text: str) -> float:
    """``90s``, ``5m`` or ``1h`` in seconds."""
    from magneton_dist.config import seconds_of

    seconds = seconds_of(text)
    if not seconds:
        raise typer.BadParameter(f"{text!r} is no time: say 90s, 5m or 1h", param_hint="--budget")
    return seconds
