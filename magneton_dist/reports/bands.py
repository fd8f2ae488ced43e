"""What a run looked like over time: the input of the page's state bands and of the Perfetto trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from magneton_dist.records.audit import EnergyKind
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COLLECTIVES, OPS, POWER, STEPS
from magneton_dist.timeline.arrivals import ARRIVALS


@dataclass(frozen=True)
class RankBands:
    """One rank of one run. Times are ns, already on the coordinator's clock (offsets added).

    `states` is a `timeline.states.STATES` table; `power`, `collectives`, `steps` and
    `ops` are tables of the record's schema, `arrivals` is `timeline.arrivals.ARRIVALS`, `monitors` is
    `records.monitors.MONITORS`; they may be empty.
    """

    states: pl.DataFrame
    power: pl.DataFrame = field(default_factory=POWER.empty)
    collectives: pl.DataFrame = field(default_factory=COLLECTIVES.empty)
    steps: pl.DataFrame = field(default_factory=STEPS.empty)
    ops: pl.DataFrame = field(default_factory=OPS.empty)
    arrivals: pl.DataFrame = field(default_factory=ARRIVALS.empty)
    monitors: pl.DataFrame = field(default_factory=MONITORS.empty)
    node: str = ""
    device: str = ""


@dataclass(frozen=True)
class RunBands:
    """One run: a variant's representative repeat.

    `start_ns` and `end_ns` bound the window that the figures of the audit speak for, on the coordinator's
    clock; `energy_kind` is the provenance of the watts in `power`.
    """

    variant: str
    repeat: int
    start_ns: int
    end_ns: int
    energy_kind: EnergyKind
    ranks: dict[int, RankBands]
