"""What this room is handed: the functions that turn spools into records, and what they take and give.

They are called by reference in Ray's workers, so each must be importable by module and name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from magneton_dist.records.manifest import Clock, MeterUsed, RankRun

CPU = "cpu"
GPUS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the tracer says of a rank on activation (`<spool>/rank-<local_rank>-<restart>.json`)."""

    rank: int
    local_rank: int
    world_size: int
    pid: int
    start_ticks: int
    restart: int
    device: str | None  # GPU UUID or "cpu"; None as long as the rank has not initialised CUDA
    distributed: bool
    segments: str  # folder below the spool

    def device_or(self, meter: MeterUsed | None) -> str:
        """Its device; of a rank that never said which: the GPU that was metered for it, else the CPU."""
        if self.device is not None:
            return self.device
        return meter.device if meter is not None and meter.device.startswith(GPUS) else CPU


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """One rank's raw data.

    Attributes:
        run: folder of the run; the rank's tables belong into its `ranks` folder.
        rank: global rank.
        segments: folder of the tracer's segments.
        power: readings of the rank's device, schema of `records.schema.POWER`; None when another rank of the
            node owns the meter or nothing was read.
        counters: likewise, of `records.schema.COUNTERS`.
        device: GPU UUID or "cpu".
        monitors: as `power`, of `records.monitors.MONITORS`.
    """

    run: Path
    rank: int
    segments: Path
    power: pl.DataFrame | None
    counters: pl.DataFrame | None
    device: str
    monitors: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """What `collect` gives back.

    Attributes:
        arrivals: this rank's part of the cross-rank join, of any type that Ray can carry.
        truncated: rows that the spool's cap left out, per table.
        missing: what did not arrive, in words.
        stopped: the tracer ended the job on purpose, after its last step.
    """

    arrivals: Any
    truncated: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    stopped: bool = False


class Meter(Protocol):
    """The part of a meter that ends up in the manifest; see `magneton_dist.meters.meter`."""

    @property
    def name(self) -> str:
        """As in the configuration."""
        ...

    @property
    def provenance(self) -> str:
        """Kind of its joules."""
        ...

    @property
    def source(self) -> str:
        """Where they come from, in words."""
        ...

    @property
    def device(self) -> str:
        """The physical device metered."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


class Sampler(Protocol):
    """Polls a meter; see `magneton_dist.meters.sampler`."""

    throttled: list[str]
    shared: str
    unmonitored: str
    temperature_c: tuple[float, float] | None
    power_cap_w: float | None

    @property
    def faults(self) -> list[str]:
        """Why readings failed."""
        ...

    @property
    def meter(self) -> Meter:
        """What it polls."""
        ...

    def start(self) -> None:
        """Start polling."""
        ...

    def stop(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Stop; power and counters."""
        ...

    def tables(self, skip: tuple[int, int] = (0, 0)) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Power and counters so far, without `skip` rows at the head of each."""
        ...

    def monitors(self, skip: int = 0) -> pl.DataFrame:
        """What performance monitors said so far, without `skip` rows at its head."""
        ...


@dataclass(frozen=True, slots=True)
class Analysis:
    """The functions, and the options that `summarise` is called with.

    Attributes:
        open_sampler: ``(meter_spec, device, period_s) -> (sampler, why this meter)``, in the rank actor.
        collect: spool and readings -> tables on disk and the rank's arrivals, in the rank actor.
        join: arrivals of all ranks, and the clock of each rank's host by rank -> what every rank must know of
            the others, in the coordinator. A host whose clock could not be read has no entry.
        summarise: ``(rank folder, rank, joined, options) -> summary``, in the rank actor.
        options: handed to `summarise`.
        gpu_uuids: UUIDs of the GPUs that a value of CUDA_VISIBLE_DEVICES shows, in its order.
    """

    open_sampler: Callable[[str, str, float], tuple[Sampler, str]]
    collect: Callable[[CollectRequest], Collected]
    join: Callable[[Sequence[Any], Mapping[int, Clock]], Any]
    summarise: Callable[[Path, RankRun, Any, Any], Any]
    gpu_uuids: Callable[[str], Sequence[str]]
    options: Any = None


def other_gpu(given: str, used: str) -> bool:
    """Whether a rank runs on another GPU than its own; a rank that uses none may do without."""
    return given != used and given.startswith(GPUS) and used.startswith(GPUS)
