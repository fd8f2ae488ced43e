"""Finishes a run whose actors are gone, from what it left in its folder: the same analysis, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from magneton_dist.cluster.analysis import Analysis, Announcement, Collected, CollectRequest
from magneton_dist.cluster.calls import as_ours
from magneton_dist.cluster.clocks import SAME, clock_identity
from magneton_dist.cluster.events import Place
from magneton_dist.cluster.launching import OUTPUT
from magneton_dist.cluster.ledger import number_ranks
from magneton_dist.cluster.manifests import delete
from magneton_dist.cluster.node_agent import CLOCK, announcements, tail
from magneton_dist.cluster.origin import ORIGIN, maker
from magneton_dist.cluster.outcome import RunOutcome
from magneton_dist.cluster.processes import is_alive
from magneton_dist.cluster.readings import saved, saved_meter, saved_monitors
from magneton_dist.errors import RecordError
from magneton_dist.records.manifest import Manifest, MeterUsed, RankRun
from magneton_dist.records.store import RunRecord, write_manifest

_GONE_S = 5.0
_END = "the end of the run: "


@dataclass(frozen=True, slots=True)
class _Found:
    """One rank's traces in the run's folder."""

    rank: int
    place: Place
    announcement: Announcement
    spool: Path

    def request(self, run: Path) -> CollectRequest:
        power, counters = saved(self.spool, self.place.local_rank)
        monitors = saved_monitors(self.spool, self.place.local_rank)
        segments, device = self.spool / self.announcement.segments, self.announcement.device_or(self.meter)
        return CollectRequest(run, self.rank, segments, power, counters, device, monitors)

    @property
    def meter(self) -> MeterUsed | None:
        """The meter that its actor used."""
        return saved_meter(self.spool, self.place.local_rank)

    def rank_run(self) -> RankRun:
        return RankRun(
            rank=self.rank,
            local_rank=self.place.local_rank,
            node=f"node-{self.place.node}",
            pid=self.announcement.pid,
            device=self.announcement.device_or(self.meter),
            distributed=self.announcement.distributed,
            meter=self.meter,
        )

    @property
    def clock_is_ours(self) -> bool:
        path = self.spool / CLOCK
        return path.exists() and path.read_text() == clock_identity()


def recover(run: Path, draft: Manifest, analysis: Analysis, why: str, *, finish: bool = True) -> RunOutcome:
    """Turn the spools of a run into tables and figures.

    Args:
        run: folder of the run.
        draft: its manifest as written before it started, or as an earlier recovery left it.
        analysis: what the actors would have called.
        why: what became of the actors, in words.
        finish: analyse now; else the spools stay as they are, for a later recovery.
    """
    began_s = time.monotonic()
    found = _find(run)
    missing = [f"{_END}{why}"]
    if not _wait_until_gone([rank.announcement for rank in found]):
        missing.append("what the ranks did after this record was closed: they could not be ended")
    ranks = {rank.rank: rank.rank_run() for rank in found}
    summaries: dict[int, Any] = {}
    whole = False
    if finish:
        collected = _collect(run, found, analysis, missing)
        ranks = {rank: msgspec.structs.replace(ranks[rank], truncated=one.truncated) for rank, one in collected.items()}
        summaries = _summarise(run, ranks, collected, found, analysis, missing)
        whole = len(collected) == len(found)
    else:
        missing.append("tables and figures: not worked out yet, the spools are kept")
    world_size = max([draft.world_size, *(rank.announcement.world_size for rank in found)])
    missing += [f"rank {rank}: nothing of it was found" for rank in range(world_size) if rank not in ranks]
    manifest = msgspec.structs.replace(
        draft, world_size=world_size, ranks=list(ranks.values()), missing=missing, finished=whole
    )
    write_manifest(run, manifest)  # before the spools go: whoever is killed here must not lose both
    if whole:
        delete(run / "spool", run / ".spool")
    return RunOutcome(
        draft.variant, draft.repeat, False, run, manifest, summaries,
        missing=tuple(missing),
        output=tail(run / OUTPUT),
        stopped=why,
        seconds=time.monotonic() - began_s,
    )  # fmt: skip


def _collect(run: Path, found: list[_Found], analysis: Analysis, missing: list[str]) -> dict[int, Collected]:
    collected = {}
    for rank in found:
        try:
            collected[rank.rank] = analysis.collect(rank.request(run))
        except Exception as error:  # noqa: BLE001 - it was handed to us; the other ranks are still good
            missing.append(f"tables of rank {rank.rank}: {as_ours(error, 'collect')}")
        else:
            missing += [f"rank {rank.rank}: {what}" for what in collected[rank.rank].missing]
    return collected


def _summarise(
    run: Path,
    ranks: dict[int, RankRun],
    collected: dict[int, Collected],
    found: list[_Found],
    analysis: Analysis,
    missing: list[str],
) -> dict[int, Any]:
    clocks = {rank.rank: SAME for rank in found if rank.clock_is_ours}
    summaries: dict[int, Any] = {}
    try:
        joined = analysis.join([one.arrivals for one in collected.values()], clocks)
        for number, rank in ranks.items():
            tables = run / "ranks" / f"{number:05d}"
            summaries[number] = analysis.summarise(tables, rank, joined, analysis.options)
    except Exception as error:  # noqa: BLE001 - it was handed to us; the tables are still good
        missing.append(f"figures of ranks: {as_ours(error, 'summarise')}")
    return summaries


def finish_unfinished(audit: Path, analysis: Analysis) -> list[RunOutcome]:
    """Finish the counted runs of an audit that ended before they did, in place.

    Args:
        audit: folder of the audit.
        analysis: as for `recover`.

    Raises:
        RecordError: a run is being made right now, or its manifest is damaged.
    """
    outcomes = []
    for spool in sorted(audit.glob("*/*/spool")):
        run = spool.parent
        if not run.name.isdecimal():
            continue  # a discarded run
        draft = RunRecord(run).manifest
        if draft.finished:  # what its actors could not turn into tables they have said
            continue
        who = maker(run)
        if who is not None:
            do = "wait until that has ended; on another host it counts as ended when the run is quiet for 5 minutes"
            raise RecordError(f"is being made by {who}", where=str(run), do=do)
        said = (what.removeprefix(_END) for what in draft.missing if what.startswith(_END))
        outcome = recover(run, draft, analysis, next(said, "its audit ended first"))
        (run / ORIGIN).unlink(missing_ok=True)
        outcomes.append(outcome)
    return outcomes


def _find(run: Path) -> list[_Found]:
    """Every rank that announced itself in the folder of a run, by rank."""
    announced = {
        Place(int(spool.name), announcement.local_rank): announcement
        for spool in sorted(run.glob("spool/*"))
        for announcement in announcements(spool)  # a restarted rank's last one comes last
    }
    numbers = number_ranks(announced)
    found = [_Found(rank, place, announced[place], run / "spool" / str(place.node)) for place, rank in numbers.items()]
    return sorted(found, key=lambda rank: rank.rank)


def _wait_until_gone(announced: Iterable[Announcement]) -> bool:
    """Whether all announced processes of this machine have ended."""
    end_s = time.monotonic() + _GONE_S
    for announcement in announced:
        while is_alive(announcement.pid, announcement.start_ticks):
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)
    return True
