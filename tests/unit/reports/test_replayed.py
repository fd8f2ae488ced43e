from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from magneton_dist.energy.replay.results import REPLAYED
from magneton_dist.energy.replay.run import Replays
from magneton_dist.reports.replayed import render_replays


def row(**changes: Any) -> tuple[dict[str, Any], set[str]]:
    known = dict.fromkeys(REPLAYED.columns) | {
        "name": "aten.addmm.default", "tensors": "float32[128], float32[512, 128]", "kind": "matmul", "calls": 24.0,
        "seconds": 101.1e-6, "joules": 0.0604, "low_j": 0.0602, "high_j": 0.0606, "net_j": 0.0481,
        "energy_kind": "replayed", "conclusive": True, "windows": 5, "notes": "",
    }  # fmt: skip
    return known | changes, {"a"}


def test_what_was_replayed_what_was_not_and_why() -> None:
    found = Replays(
        [
            row(),
            row(name="allreduce_", tensors="4.2 MB of float32, 2 ranks", joules=None, low_j=None, high_j=None,
                net_j=None, energy_kind="unmeasured", conclusive=False),
            row(name="aten.evil\x1b[31m.default", seconds=None, notes="opens files"),
        ],
        left_out=7, notes=["not alone: 3 processes compute on GPU-1"],
    )  # fmt: skip
    out = io.StringIO()
    render_replays(found, Console(file=out, width=100, highlight=False))
    text = out.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert ["addmm", "24", "101.1", "µs", "60.40", "mJ", "replayed", "48.10", "mJ"] in lines
    assert "60.2 mJ to 60.6 mJ" in text
    assert "float32[128], float32[512, 128]" in text
    assert ["allreduce_", "24", "101.1", "µs", "unmeasured", "inconclusive"] in lines
    assert "not replayed: aten.evil" in text
    assert ": opens files" in text
    assert "\x1b" not in text
    assert "not alone: 3 processes" in text
    assert "its meter's own gain is not known" in text
    assert "The budget did not reach 7 further kinds of calls" in text
