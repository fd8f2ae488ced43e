"""What the kernels of a recorded run cost, rank by rank."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from magneton_dist.audits import SETTINGS, Settings
from magneton_dist.energy.kernels import KERNEL_ENERGY, kernel_energy
from magneton_dist.errors import RecordError
from magneton_dist.meters import Profile, load_profile
from magneton_dist.pipeline import MODELLED, analyse
from magneton_dist.records.manifest import Manifest
from magneton_dist.records.store import RunRecord, load
from magneton_dist.timeline.gpu_states import captured

WATTS = "h200"  # whose idling stands in for a device's own, where nobody calibrated it


def kernel_costs(folder: Path, profile: Profile | None = None) -> pl.DataFrame:
    """`KERNEL_ENERGY` of every rank of the run in `folder`, with columns rank and energy_kind before it.

    Args:
        folder: of one run.
        profile: whose context idle is taken off; default: that of the run's audit (`calibrate`), else the one that
            the rank's watts were modelled with, else an H200's, and then the row of it is modelled.

    Raises:
        RecordError: it is no run, or no kernels were captured in it.
    """
    run = load(folder)
    if not isinstance(run, RunRecord):
        raise RecordError("is an audit, not one run", where=str(folder), do="give VARIANT/REPEAT below it")
    settings = run.folder.parent.parent
    known = Settings.read(settings).profile if (settings / SETTINGS).is_file() else None
    done = analyse(run, known)
    parts = []
    for rank, account in sorted(done.accounts.items()):
        record, window = run.ranks[rank], done.joined.windows[rank]
        if record.activities.is_empty():
            continue
        windows, whole = captured(record.marks, record.activities)
        idle = profile or known or _modelled_with(done.manifest, rank) or load_profile(WATTS)
        _, sharing = done.joined.sharing.get(rank, (rank, 1))
        found = kernel_energy(
            record.activities, account.power, windows[whole], (window.start_ns, window.end_ns),
            idle.watts["context_idle"].nominal, share=1.0 / sharing,
        )  # fmt: skip
        kind = "apportioned" if account.summary.energy_kind == "measured" else account.summary.energy_kind
        of_idle = "modelled" if kind == "apportioned" and idle.sensor is None else kind  # nobody measured it idling
        kinds = pl.when(pl.col("kind") == "idle").then(pl.lit(of_idle)).otherwise(pl.lit(kind))
        parts.append(found.with_columns(rank=pl.lit(rank), energy_kind=kinds))
    if not parts:
        do = "set capture.kernels for a run on GPUs, or audit profiler traces"
        raise RecordError("no kernels were captured", where=str(folder), do=do)
    return pl.concat(parts).select("rank", "energy_kind", *KERNEL_ENERGY.columns)


def _modelled_with(manifest: Manifest, rank: int) -> Profile | None:
    """The profile of a rank's watts, where they were modelled."""
    meter = next((r.meter for r in manifest.ranks if r.rank == rank), None)
    if meter is None or meter.provenance != "modelled":
        return None
    return load_profile(meter.name.removeprefix(MODELLED))
