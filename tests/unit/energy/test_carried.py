from __future__ import annotations

import polars as pl
import pytest

from magneton_dist.energy.attribution import Attribution
from magneton_dist.energy.carried import carried_over
from magneton_dist.records.audit import StateShare
from magneton_dist.timeline.carry import CARRIED, Carried

WATTS = {"compute": 600.0, "context_idle": 100.0, "wait": 130.0, "transfer": 250.0, "unresolved": 350.0}


def attribution(total_j: float | None, **states: tuple[float, float | None]) -> Attribution:
    named = {f"working/{name}": StateShare(s, j) for name, (s, j) in states.items()}
    known = sum(s.j for s in named.values() if s.j is not None)
    return Attribution(named, total_j, None if total_j is None else total_j - known, None, 0.0, ("before",))


def carried(coverage: float, *rows: tuple[str, float, bool]) -> Carried:
    table = [(1, "working", activity, seconds, was) for activity, seconds, was in rows]
    return Carried(pl.DataFrame(table, schema=CARRIED.schema, orient="row"), coverage)


def test_joules_outside_the_windows_go_where_the_seconds_go_and_the_total_stays() -> None:
    # in windows: 1 s compute at 600 W, 1 s idle at 100 W; outside 8 s unresolved that draw 350 W
    plain = attribution(3500.0, compute=(1.0, 600.0), idle=(1.0, 100.0), unresolved=(8.0, 2800.0))
    filled = carried(0.2, ("compute", 1.0, False), ("idle", 1.0, False), ("compute", 4.0, True), ("idle", 4.0, True))
    found = carried_over(plain, filled, WATTS)
    assert found.states.keys() == {"working/compute", "working/idle"}
    assert found.states["working/compute"].s == 5.0
    assert found.states["working/compute"].j == pytest.approx(600 + 2800 * 6 / 7)
    assert found.states["working/idle"].j == pytest.approx(100 + 2800 * 1 / 7)
    assert sum(share.j or 0 for share in found.states.values()) == pytest.approx(3500.0)
    assert found.residual_j == pytest.approx(0.0)
    assert found.total_j == 3500.0
    assert found.notes == (
        "before",
        "kernels were captured in 20.0% of the window: the states of 8.00 s outside are shared out as inside, and "
        "their joules with them",
    )


def test_a_state_that_stays_keeps_its_joules() -> None:
    plain = attribution(1000.0, wait=(4.0, 520.0), unresolved=(1.0, 480.0))
    filled = carried(0.5, ("wait", 2.0, False), ("wait", 1.0, True), ("overlap", 1.0, True), ("compute", 1.0, True))
    found = carried_over(plain, filled, WATTS).states
    assert found["working/wait"].j == pytest.approx(390.0)
    assert found["working/overlap"].j == found["working/compute"].j == pytest.approx((130 + 480) / 2)


def test_unmeasured_joules_stay_unmeasured_and_without_windows_nothing_changes() -> None:
    plain = attribution(None, compute=(1.0, 600.0), unresolved=(1.0, None))
    found = carried_over(plain, carried(0.5, ("compute", 1.0, False), ("compute", 1.0, True)), WATTS)
    assert found.states["working/compute"] == StateShare(2.0, None)
    assert found.residual_j is None
    assert carried_over(plain, carried(1.0, ("compute", 2.0, False)), WATTS) is plain
