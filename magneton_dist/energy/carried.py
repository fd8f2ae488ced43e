"""Joules of steps without captured kernels, shared out as the captured steps spent theirs.

Outside captured windows a GPU rank's states are what collectives tell: wait, transfer, or unresolved. The captured
windows show what each of them really is (`timeline.carry`). Seconds move accordingly, and joules move with them, by
the watts that a profile gives the states: the device's total stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from magneton_dist.energy.attribution import Attribution
from magneton_dist.energy.model import WATTS_KEYS
from magneton_dist.records.audit import StateShare
from magneton_dist.timeline.carry import Carried


def carried_over(plain: Attribution, carried: Carried, watts: Mapping[str, float]) -> Attribution:
    """`plain` with what the captured windows say of the time outside them.

    Args:
        plain: by the states of which only the captured windows are resolved.
        carried: seconds by state, the time outside the windows filled in.
        watts: W by key of a profile's states, which weigh the states that joules move to.
    """
    moved_s = float(carried.seconds.filter("carried")["seconds"].sum())
    if not moved_s:
        return plain
    sums = carried.seconds.group_by("phase", "activity").agg(pl.col("seconds").sum())
    seconds = {f"{phase}/{activity}": s for phase, activity, s in sums.iter_rows()}
    shares: dict[str, StateShare] = {}
    for phase in sorted({key.partition("/")[0] for key in seconds}):
        shares |= _redistributed(
            {k: v for k, v in plain.states.items() if k.startswith(f"{phase}/")},
            {k: s for k, s in seconds.items() if k.startswith(f"{phase}/")},
            watts,
        )
    known_j = sum(share.j for share in shares.values() if share.j is not None)
    note = (
        f"kernels were captured in {carried.coverage:.1%} of the window: the states of {moved_s:.2f} s outside are "
        "shared out as inside, and their joules with them"
    )
    return replace(
        plain, states=dict(sorted(shares.items())), notes=(*plain.notes, note),
        residual_j=None if plain.total_j is None else plain.total_j - known_j,
    )  # fmt: skip


def _redistributed(
    before: Mapping[str, StateShare], seconds: Mapping[str, float], watts: Mapping[str, float]
) -> dict[str, StateShare]:
    """States of one phase with other seconds: joules of those that lose time go to those that gain it."""
    pool_j: float | None = 0.0
    kept_j: dict[str, float | None] = {}
    for key, share in before.items():
        left = min(1.0, seconds.get(key, 0.0) / share.s) if share.s else 1.0
        kept_j[key] = None if share.j is None else share.j * left
        if left < 1.0:
            pool_j = None if pool_j is None or share.j is None else pool_j + share.j * (1 - left)
    none = StateShare(0.0, 0.0)
    gained = {key: s - before.get(key, none).s for key, s in seconds.items() if s > before.get(key, none).s}
    weight = {key: s * watts[WATTS_KEYS[key.partition("/")[2]]] for key, s in gained.items()}
    total = sum(weight.values())
    shares = {}
    for key, s in seconds.items():
        joules = kept_j.get(key, 0.0)
        if key in gained:
            joules = None if joules is None or pool_j is None else joules + pool_j * weight[key] / total
        if s or joules:
            shares[key] = StateShare(s, joules)
    return shares
