"""The smallest analysis: counts rows of the spool, joins the counts, and says what each rank was told."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from magneton_dist.cluster.analysis import Analysis, Collected, CollectRequest
from magneton_dist.meters import Sampler, open_meter
from magneton_dist.records.manifest import Clock, RankRun


def open_sampler(spec: str, device: str, period_s: float) -> tuple[Sampler, str]:
    meter, reason = open_meter(spec, device)
    return Sampler(meter, period_s), reason


def collect(request: CollectRequest) -> Collected:
    rows = [
        json.loads(line) for path in sorted(request.segments.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    steps = [row for row in rows if row[0] == "step"]
    last_ns = max((row[3] for row in steps), default=0)
    folder = request.run / "ranks" / f"{request.rank:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counts.json").write_text(json.dumps({"steps": len(steps), "last_step_ns": last_ns}))
    (folder / "polars.txt").write_text(__import__("polars").__file__)
    stopped = any(row[:2] == ["mark", "stopped"] for row in rows)
    return Collected(arrivals={request.rank: len(steps)}, stopped=stopped)


def join(arrivals: Sequence[Mapping[int, int]], clocks: Mapping[int, Clock]) -> dict[str, Any]:
    counts = {rank: steps for one in arrivals for rank, steps in one.items()}
    return {"steps": counts, "clocks": {rank: clock.error_ns for rank, clock in clocks.items()}}


def summarise(folder: Path, rank: RankRun, joined: dict[str, Any], options: Any) -> dict[str, Any]:
    return {**json.loads((folder / "counts.json").read_text()), "joined": joined, "options": options}


def gpu_uuids(visible: str) -> list[str]:
    return [f"GPU-{name}" for name in visible.split(",")]


def slow_summarise(folder: Path, rank: RankRun, joined: dict[str, Any], options: Any) -> dict[str, Any]:
    time.sleep(600)
    return {}


def broken_collect(request: CollectRequest) -> Collected:
    if request.rank == 1:
        raise ValueError("torn beyond repair")
    return collect(request)


TRIVIAL = Analysis(open_sampler, collect, join, summarise, gpu_uuids, options={"from": "the test"})
SLOW = Analysis(open_sampler, collect, join, slow_summarise, gpu_uuids)
BROKEN = Analysis(open_sampler, broken_collect, join, summarise, gpu_uuids)
