"""Summaries of ranks built from seconds, so that every joule can be added up by hand."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.model import WATTS_KEYS
from magneton_dist.energy.summary import RankSummary
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import StateShare
from magneton_dist.timeline.sums import WAITS

PROFILE = load_profile("h200")
WATTS = PROFILE.nominal()

Wait = dict[str, object]


def waits(*rows: Wait) -> pl.DataFrame:
    """A WAITS table; what a row leaves out is 0 or null."""
    defaults: Wait = {
        "group": "0", "op": "allreduce_", "origin": "ddp", "stack_id": 1, "culprit": None, "phase": "working",
        "count": 0, "refused": 0, "wait_s": 0.0, "transfer_s": 0.0, "wait_error_s": 0.0, "exposed_wait_s": 0.0,
        "exposed_transfer_s": 0.0, "bytes": 0, "zero_count": 0, "zero_bytes": 0, "shadow_peers": 0,
        "first_step": None, "last_step": None,
    }  # fmt: skip
    return pl.DataFrame([defaults | row for row in rows], schema=WAITS.schema)


def summary(rank: int, states: dict[str, float], *rows: Wait, steps: int = 10, units: float | None = None,
            stack: list[str] | None = None) -> RankSummary:  # fmt: skip
    """A rank that spent these seconds in these ``phase/activity`` states, with the H200 profile's watts."""
    shares = {key: StateShare(s, s * WATTS[WATTS_KEYS[key.split("/")[1]]]) for key, s in states.items()}
    seconds: dict[str, float] = {}
    for key, s in states.items():
        watt_key = WATTS_KEYS[key.split("/")[1]]
        seconds[watt_key] = seconds.get(watt_key, 0.0) + s
    return RankSummary(
        rank=rank, node="a", device="cpu", window_s=sum(states.values()), states=shares, watt_seconds=seconds,
        energy_j=sum(share.j or 0.0 for share in shares.values()), energy_kind="modelled", energy_source="model",
        steps=steps, units=units, unit=None if units is None else "tokens", waits=waits(*rows),
        stacks={1: stack or ["/site-packages/torch/distributed/x.py:1 f", "train.py:7 main"]},
    )  # fmt: skip


@pytest.fixture
def runs() -> Callable[..., VariantRuns]:
    """VariantRuns from lists of summaries, one list per repeat."""

    def build(*repeats: list[RankSummary]) -> VariantRuns:
        return VariantRuns("join", [{s.rank: s for s in repeat} for repeat in repeats], PROFILE)

    return build
