"""The actor beside one rank: samples its device, follows its spool, and analyses its own rank at the end."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from magneton_dist.cluster.analysis import CPU, Analysis, Announcement, Collected, CollectRequest
from magneton_dist.cluster.processes import die_with_raylet
from magneton_dist.cluster.readings import Readings
from magneton_dist.cluster.spool import Follower, Sums
from magneton_dist.errors import ClusterError
from magneton_dist.records.manifest import MeterUsed, RankRun


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """Where a rank actor landed: its node's Ray id and the accelerators that Ray gave it."""

    node_id: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the meter saw of its device during a run; see `meters.sampler.Sampler`."""

    temperature_c: tuple[float, float] | None = None
    power_cap_w: float | None = None
    faults: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()


class RankActor:
    """One per rank, pinned to the rank's device by its placement; kept for all runs of an audit.

    Where a job has more ranks on a node than it has actors, an actor serves several.
    """

    def __init__(self, analysis: Analysis, meter: str, period_s: float) -> None:
        die_with_raylet()
        self._analysis = analysis
        self._meter = meter
        self._period_s = period_s
        self._slot = 0
        self._readings: Readings | None = None
        self._followers: dict[str, Follower] = {}

    def describe(self) -> SlotFacts:
        """Node and accelerators."""
        context = ray.get_runtime_context()
        return SlotFacts(context.get_node_id(), tuple(map(str, context.get_accelerator_ids().get("GPU", []))))

    def open(self, spool: Path, slot: int, device: str | None, resume: bool) -> MeterUsed:
        """Start to sample for a run.

        Args:
            spool: the node's spool folder of the run.
            slot: number of this actor on its node.
            device: what Ray calls the accelerator, or None on a machine without.
            resume: take over from an actor that was killed.

        Raises:
            MeterError: the meter that the user asked for does not work.
        """
        self.close()
        self._slot = slot
        self._followers.clear()
        spool.mkdir(parents=True, exist_ok=True)
        return self._open(spool, CPU if device is None else self._analysis.gpu_uuids(device)[0], resume)

    def attach(self, spool: Path, announcement: Announcement) -> MeterUsed:
        """Follow the announced rank; its meter, opened anew when the rank runs on another device than expected.

        A rank that does not say its device yet keeps the meter that was opened for it.
        """
        if self._readings is None:
            raise ClusterError("no meter was opened for this run", where=f"rank {announcement.rank}")
        if announcement.segments not in self._followers:  # it may say more of itself later
            self._followers[announcement.segments] = Follower(spool / announcement.segments)
        if announcement.device is not None and announcement.device != self._readings.device:
            self._readings.stop()
            return self._open(spool, announcement.device, resume=False)
        return self._readings.used

    def sums(self) -> dict[str, Sums]:
        """Sums of each followed rank, by its segments' name; readings so far are on disk when this returns."""
        joules = None
        if self._readings is not None:
            self._readings.save()
            joules = self._readings.joules
        return {name: replace(follower.advance(), joules=joules) for name, follower in self._followers.items()}

    def close(self) -> None:
        """Stop sampling: the run is over, or another actor owns the device."""
        if self._readings is not None:
            self._readings.stop()

    def collect(
        self, run: Path, spool: Path, rank: int, announcement: Announcement, owner: bool
    ) -> tuple[Collected, Conditions]:
        """Turn the spool of one rank into tables, with the readings of its device if this actor owns it."""
        self.close()
        power, counters, monitors, conditions = None, None, None, Conditions()
        if self._readings is not None and owner:
            sampler = self._readings.sampler
            power, counters = self._readings.tables()
            monitors = self._readings.monitors()
            shared = (sampler.shared,) if sampler.shared else ()
            conditions = Conditions(
                sampler.temperature_c, sampler.power_cap_w, tuple(self._readings.faults()),
                (*sampler.throttled, *shared),
            )  # fmt: skip
        segments = spool / announcement.segments
        device = announcement.device_or(self._readings.used if self._readings is not None else None)
        request = CollectRequest(run, rank, segments, power, counters, device, monitors)
        return self._analysis.collect(request), conditions

    def summarise(self, folder: Path, rank: RankRun, joined: Any) -> Any:
        """The rank's own figures, now that all ranks are known."""
        return self._analysis.summarise(folder, rank, joined, self._analysis.options)

    def deliver(self, folder: Path) -> dict[str, bytes]:
        """The rank's tables, for a driver that does not share this node's file system."""
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    def size(self, folder: Path) -> int:
        """Bytes that `deliver` would return."""
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    def delivered(self, folder: Path) -> None:
        """The tables in `folder` are stored elsewhere: delete them here."""
        shutil.rmtree(folder, ignore_errors=True)

    def _open(self, spool: Path, device: str, resume: bool) -> MeterUsed:
        sampler, reason = self._analysis.open_sampler(self._meter, device, self._period_s)
        self._readings = Readings(spool, self._slot, device, sampler, reason, resume=resume)
        return self._readings.used
