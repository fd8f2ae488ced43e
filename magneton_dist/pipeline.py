"""The analysis of one run, strung together: spool -> record -> joined ranks -> rank accounts.

`collect`, `join` and `summarise` run in the cluster's actors, by reference; `analyse` does the same for a
record on disk.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from magneton_dist.cluster.analysis import Collected, CollectRequest
from magneton_dist.energy.accounting import RankAccount, Supply, account
from magneton_dist.energy.replay.results import read_replayed
from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import RecordError
from magneton_dist.importers.captured import with_kernels
from magneton_dist.meters import Profile, Sampler, load_profile, open_meter, visible_gpus
from magneton_dist.records.assembly import assemble
from magneton_dist.records.host_times import read_host_times, write_host_times
from magneton_dist.records.inputs import keep_inputs
from magneton_dist.records.manifest import Clock, Manifest, RankRun
from magneton_dist.records.monitors import read_monitors, write_monitors
from magneton_dist.records.schema import COUNTERS, OPS, POWER, TABLES
from magneton_dist.records.store import RankRecord, RunRecord, rank_folder, write_rank
from magneton_dist.timeline.arrivals import Joined, join_arrivals, own_arrivals
from magneton_dist.timeline.clocks import RankClock
from magneton_dist.timeline.window import Life, Window, audited_windows, own_life

MODELLED = "modelled:"
OF_ARRIVALS = ("steps", "collectives", "stamps", "marks", "power")  # the tables that a rank's arrivals come from
ESSENTIAL = frozenset({"steps", "collectives", "marks"})  # tables that a rank cannot be audited without


@dataclass(frozen=True)
class RankArrivals:
    """What a rank sends to the join."""

    rank: int
    host: str
    device: str
    has_power: bool
    calls: pl.DataFrame
    life: Life


@dataclass(frozen=True)
class RunJoin:
    """What every rank must know of the others.

    `sharing`: rank -> (rank whose record holds the readings of the shared device, ranks on that device).
    """

    joined: Joined
    windows: dict[int, Window]
    sharing: dict[int, tuple[int, int]]
    notes: list[str] = field(default_factory=list)


def open_sampler(meter_spec: str, device: str, period_s: float) -> tuple[Sampler, str]:
    """The meter of one device, ready to be polled, and why it is this meter."""
    meter, reason = open_meter(meter_spec, device)
    return Sampler(meter, period_s), reason


def collect(request: CollectRequest) -> Collected:
    """Turn one rank's spool and readings into tables on disk."""
    recorded, host_times = with_kernels(assemble(request.segments), request.segments, request.device)
    tables = {
        **recorded,
        "power": POWER.empty() if request.power is None else request.power,
        "counters": COUNTERS.empty() if request.counters is None else request.counters,
    }
    write_rank(request.run, request.rank, tables)
    if host_times.height:
        write_host_times(rank_folder(request.run, request.rank), host_times)
    if request.monitors is not None and request.monitors.height:
        write_monitors(rank_folder(request.run, request.rank), request.monitors)
    keep_inputs(request.segments, rank_folder(request.run, request.rank))
    missing = []
    arrivals = None
    try:
        arrivals = _arrivals(request.rank, tables, socket.gethostname(), request.device)
    except RecordError as error:
        missing.append(f"rank {request.rank}: {error.what}")
    sums = tables["collective_sums"]
    truncated = {"collectives": int(sums["count"].sum())} if sums.height else {}
    stopped = bool(tables["marks"]["name"].is_in(["stopped"]).any())
    return Collected(arrivals, truncated, missing, stopped)


def _arrivals(rank: int, tables: Mapping[str, pl.DataFrame], host: str, device: str) -> RankArrivals:
    return RankArrivals(
        rank=rank,
        host=host,
        device=device,
        has_power=tables["power"].height > 0,
        calls=own_arrivals(tables["collectives"], rank),
        life=own_life(tables, rank),
    )


def join(
    arrivals: Sequence[RankArrivals | None], clocks: Mapping[int, Clock] | None = None, *, assumed: bool = False
) -> RunJoin:
    """Join the ranks of one run; ranks without records are left out and make their collectives `none`.

    Args:
        arrivals: of each rank, None where nothing was recorded.
        clocks: of each rank; ranks of one host share a clock and need no entry.
        assumed: that those of one host agree is assumed, as of traces, not known.
    """
    present = [a for a in arrivals if a is not None]
    hosts = {a.rank: a.host for a in present}
    if clocks is None:
        one_host = len(set(hosts.values())) == 1
        clocks = {rank: Clock() for rank in hosts} if one_host else {}
    joined = join_arrivals([a.calls for a in present], clocks, assumed=assumed)
    aligned: dict[int, RankClock] = dict(joined.clocks)
    windows, notes = audited_windows({a.rank: a.life for a in present}, aligned)
    return RunJoin(joined, windows, _sharing(present), [*joined.notes, *notes])


def _sharing(ranks: Sequence[RankArrivals]) -> dict[int, tuple[int, int]]:
    """Ranks that run on one device, by the rank that holds its readings."""
    out: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        same = [r for r in ranks if (r.host, r.device) == (rank.host, rank.device)]
        owner = next((r.rank for r in same if r.has_power), rank.rank)
        out[rank.rank] = (owner, len(same))
    return out


def summarise(folder: Path, rank: RankRun, joined: RunJoin, profile: Profile | None = None) -> RankSummary:
    """The figures of one rank; modelled power is added to its record. `profile`: as for `account_rank`."""
    done = account_rank(folder, rank, joined, profile)
    if done.summary.energy_kind == "modelled":
        write_rank(folder.parent.parent, rank.rank, {"power": done.power})
    return done.summary


def account_rank(
    folder: Path, rank: RankRun, joined: RunJoin, profile: Profile | None = None
) -> RankAccount:
    """Account for the rank whose tables lie in `folder`.

    `profile`: the watts of a rank whose meter is modelled, default: the meter's own; the sensor of one that measures.
    """
    record = RankRecord(folder)
    tables = {name: record.table(name) for name in TABLES if name != "ops"}
    # of a profiler's trace operators have no values, are many, and cost nothing by themselves
    tables["ops"] = OPS.empty() if tables["values"].is_empty() else record.ops
    if rank.rank not in joined.windows:
        raise RecordError(f"rank {rank.rank}: nothing was recorded", where=str(folder))
    window = joined.windows[rank.rank]
    supply = _supply(folder, rank, joined, record, profile)
    replayed = read_replayed(folder.parent.parent)
    return account(
        rank, tables, joined.joined.of(rank.rank), window, supply, replayed if replayed.height else None,
        read_host_times(folder), read_monitors(folder),
    )  # fmt: skip


def _supply(
    folder: Path, rank: RankRun, joined: RunJoin, record: RankRecord, profile: Profile | None
) -> Supply:
    meter = rank.meter
    if meter is not None and meter.provenance == "modelled":
        return Supply(profile or load_profile(meter.name.removeprefix(MODELLED)), POWER.empty())
    owner, ranks = joined.sharing.get(rank.rank, (rank.rank, 1))
    readings = record if owner == rank.rank else RankRecord(rank_folder(folder.parent.parent, owner))
    counters = readings.counters if readings.counters.height else None
    sensor, calibrated = (None, "") if profile is None else (profile.sensor, profile.device)
    return Supply(None, readings.power, counters, 1.0 / ranks, sensor, calibrated)


@dataclass(frozen=True)
class RunAnalysis:
    """One run of a record, analysed."""

    record: RunRecord
    joined: RunJoin
    accounts: dict[int, RankAccount]

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        return self.record.manifest


def analyse(run: RunRecord, profile: Profile | None = None) -> RunAnalysis:
    """Analyse one recorded run again; `profile`: as for `account_rank`."""
    manifest = run.manifest
    known = {r.rank: r for r in manifest.ranks}
    arrivals = []
    for rank, record in run.ranks.items():
        entry = known.get(rank)
        tables = {name: record.table(name) for name in OF_ARRIVALS}
        device = entry.device if entry else "cpu"
        if ESSENTIAL & set(record.missing):  # what is left would be taken for a rank without steps or calls
            continue
        try:
            arrivals.append(_arrivals(rank, tables, entry.node if entry else "", device))
        except RecordError:  # nothing was recorded of it, as its manifest says
            continue
    # a host whose clock was not read has no entry; without any, one host shares one clock
    clocks = {r.rank: manifest.clocks[r.node] for r in manifest.ranks if r.node in manifest.clocks}
    joined = join(arrivals, clocks or None, assumed=not manifest.command)
    accounts = {
        rank: account_rank(record.folder, known.get(rank, RankRun(rank, rank, "")), joined, profile)
        for rank, record in run.ranks.items()
        if rank in joined.windows
    }
    return RunAnalysis(run, joined, accounts)


def gpu_uuids(visible: str) -> list[str]:
    """UUIDs of the GPUs that this value of CUDA_VISIBLE_DEVICES shows, in its order."""
    return list(visible_gpus(visible).uuids)
