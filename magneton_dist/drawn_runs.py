"""Recorded runs as reports draw and export them: over time, and summed up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import RecordError
from magneton_dist.pipeline import RunAnalysis, analyse
from magneton_dist.records.manifest import Manifest
from magneton_dist.records.monitors import read_monitors
from magneton_dist.records.store import RunRecord, load
from magneton_dist.reports.bands import RankBands, RunBands
from magneton_dist.timeline.clocks import RankClock


def bands(folder: Path) -> RunBands:
    """One recorded run over time."""
    record = _one_run(folder)
    done = analyse(record)
    drawn = run_bands(done, record.manifest)
    ranks = {
        rank: replace(bands, ops=_shifted(record.ranks[rank].ops, _shift_ns(done, rank)))
        for rank, bands in drawn.ranks.items()
    }
    return replace(drawn, ranks=ranks)


def summaries(folder: Path) -> tuple[Manifest, dict[int, RankSummary]]:
    """One recorded run: its manifest, and what each of its ranks comes down to."""
    record = _one_run(folder)
    return record.manifest, {rank: done.summary for rank, done in analyse(record).accounts.items()}


def _one_run(folder: Path) -> RunRecord:
    record = load(folder)
    if not isinstance(record, RunRecord):
        raise RecordError(
            "is an audit, not one run", where=str(folder), do="give VARIANT/REPEAT below it, such as join/0"
        )
    return record


def run_bands(done: RunAnalysis, manifest: Manifest) -> RunBands:
    """States, power and calls over time, without operators, on the coordinator's clock; `manifest` names the run."""
    ranks, starts, ends, kinds = {}, [], [], []
    for rank, of_rank in done.accounts.items():
        window, shift = done.joined.windows[rank], _shift_ns(done, rank)
        record = done.record.ranks[rank]
        starts.append(window.start_ns + shift)
        ends.append(window.end_ns + shift)
        kinds.append(of_rank.summary.energy_kind)
        ranks[rank] = RankBands(
            states=_shifted(of_rank.states, shift),
            power=_shifted(of_rank.power, shift),
            collectives=_shifted(record.collectives, shift),
            steps=_shifted(record.steps, shift),
            arrivals=done.joined.joined.of(rank).with_columns(pl.col("last_arrival_ns") + shift),
            monitors=_shifted(read_monitors(record.folder), shift),
            node=of_rank.summary.node,
            device=of_rank.summary.device,
        )
    kind = kinds[0] if kinds else "unmeasured"
    return RunBands(manifest.variant, manifest.repeat, min(starts, default=0), max(ends, default=0), kind, ranks)


def _shift_ns(done: RunAnalysis, rank: int) -> int:
    """What a rank's clock lacks to the coordinator's, at the start of the window."""
    start = done.joined.windows[rank].start_ns
    return done.joined.joined.clocks.get(rank, RankClock()).to_common(start) - start


def _shifted(table: pl.DataFrame, by_ns: int) -> pl.DataFrame:
    times = [name for name in table.columns if name.endswith("_ns") and name != "window_ns"]
    return table.with_columns(pl.col(times) + by_ns) if by_ns else table
