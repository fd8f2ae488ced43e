"""What replay found, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from magneton_dist.energy.replay.run import Replays
from magneton_dist.reports.figures import one_line, quantity

MOST_ROWS = 40
UNKNOWN_GAIN = "Intervals compare calls on this device; its meter's own gain is not known, and may be off by 5 %."


def render_replays(found: Replays, console: Console) -> None:
    """Print the rows, what could not be replayed and why, and the notes."""
    shown = [(row, variants) for row, variants in found.rows if row["seconds"] is not None]
    net = any(row["net_j"] is not None for row, _ in shown)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Call", overflow="fold")
    for name in ("per step", "Time", "Energy", *(["Net"] if net else []), ""):
        table.add_column(name, justify="right")
    for row, _ in shown[:MOST_ROWS]:
        table.add_row(*map(Text, _cells(row, net)))
    console.print(table)
    if len(shown) > MOST_ROWS:
        console.print(Text(f"and {len(shown) - MOST_ROWS} more"))
    for text in [*_refused([row for row, _ in found.rows]), *found.notes]:
        console.print(Text(one_line(text, 400)), soft_wrap=True)
    if any(row["energy_kind"] == "replayed" for row, _ in shown):
        console.print(Text(UNKNOWN_GAIN), soft_wrap=True)
    if found.left_out:
        console.print(Text(f"The budget did not reach {found.left_out} further kinds of calls, less at stake in each."))


def _cells(row: Mapping[str, Any], net: bool) -> list[str]:
    energy = "unmeasured"
    if row["joules"] is not None:
        ends = f"{quantity(row['low_j'], 'J', 3)} to {quantity(row['high_j'], 'J', 3)}"
        energy = f"{quantity(row['joules'], 'J')} {row['energy_kind']}\n{ends}"
    beyond = [] if not net else ["" if row["net_j"] is None else quantity(row["net_j"], "J")]
    name = f"{one_line(row['name'].removeprefix('aten.').removesuffix('.default'), 48)}\n{one_line(row['tensors'], 48)}"
    settled = "" if row["conclusive"] else "inconclusive"
    return [name, f"{row['calls']:.3g}", quantity(row["seconds"], "s"), energy, *beyond, settled]


def _refused(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why calls were not replayed, one line a reason."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row["seconds"] is None:
            names.setdefault(row["notes"] or "", []).append(row["name"])
    return [f"not replayed: {', '.join(dict.fromkeys(of))}: {why}" for why, of in names.items()]
