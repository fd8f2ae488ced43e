"""Finishes a run whose actors are gone, from what it left in its folder: the same analysis, in this process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from magneton_dist.cluster.analysis import Analysis, Announcement, CollectRequest
from magneton_dist.cluster.calls import as_ours
from magneton_dist.cluster.events import Place
from magneton_dist.cluster.ledger import number_ranks
from magneton_dist.cluster.node_agent import announcements
from magneton_dist.cluster.outcome import RunOutcome
from magneton_dist.cluster.processes import is_alive
from magneton_dist.cluster.readings import saved, saved_meter
from magneton_dist.records.manifest import Manifest, RankRun

_GONE_S = 5.0


def recover(folder: Path, draft: Manifest, analysis: Analysis, why: str) -> RunOutcome:
    """Turn the spools in the folder of a run into tables and figures.

    Args:
        folder: of the run.
        draft: its manifest as written before it started.
        analysis: what the actors would have called.
        why: what became of the actors, in words.
    """
    began_s = time.monotonic()
    announced = {
        Place(int(spool.name), announcement.local_rank): announcement
        for spool in sorted(folder.glob("spool/*"))
        for announcement in announcements(spool)  # a restarted rank's last one comes last
    }
    missing = [f"the end of the run: {why}"]
    if not _wait_until_gone(announced.values()):
        missing.append("what ranks did after this record was closed: they could not be ended")
    ranks: dict[int, RankRun] = {}
    arrivals: list[Any] = []
    numbers = number_ranks(announced)
    for place in sorted(numbers, key=numbers.__getitem__):
        rank, announcement, spool = numbers[place], announced[place], folder / "spool" / str(place.node)
        power, counters = saved(spool, place.local_rank)
        request = CollectRequest(
            folder, rank, spool / announcement.segments, power, counters, announcement.device
        )
        try:
            collected = analysis.collect(request)
        except Exception as error:  # noqa: BLE001 - it was handed to us; the other ranks are still good
            missing.append(f"tables of rank {rank}: {as_ours(error, 'collect')}")
            continue
        arrivals.append(collected.arrivals)
        missing += [f"rank {rank}: {what}" for what in collected.missing]
        ranks[rank] = RankRun(
            rank=rank,
            local_rank=place.local_rank,
            node=f"node-{place.node}",
            pid=announcement.pid,
            device=announcement.device,
            distributed=announcement.distributed,
            meter=saved_meter(spool, place.local_rank),
            truncated=collected.truncated,
        )
    summaries = _summarise(folder, analysis, ranks, arrivals, missing)
    world_size = max([draft.world_size, *(announcement.world_size for announcement in announced.values())])
    missing += [f"rank {rank}: nothing of it was found" for rank in range(world_size) if rank not in ranks]
    if len(ranks) == len(numbers):
        shutil.rmtree(folder / "spool", ignore_errors=True)
    manifest = msgspec.structs.replace(
        draft, world_size=world_size, ranks=list(ranks.values()), missing=missing
    )
    return RunOutcome(
        draft.variant, draft.repeat, False, folder, manifest, summaries,
        missing=tuple(missing), stopped=why, seconds=time.monotonic() - began_s,
    )  # fmt: skip


def _summarise(
    folder: Path, analysis: Analysis, ranks: dict[int, RankRun], arrivals: list[Any], missing: list[str]
) -> dict[int, Any]:
    summaries: dict[int, Any] = {}
    try:
        joined = analysis.join(arrivals) if arrivals else None
        for rank, run in ranks.items():
            tables = folder / "ranks" / f"{rank:05d}"
            summaries[rank] = analysis.summarise(tables, run, joined, analysis.options)
    except Exception as error:  # noqa: BLE001 - it was handed to us; the tables are still good
        missing.append(f"figures of some ranks: {as_ours(error, 'summarise')}")
    return summaries


def _wait_until_gone(announced: Collection[Announcement]) -> bool:
    """Whether all announced processes of this machine have ended."""
    end_s = time.monotonic() + _GONE_S
    while any(is_alive(announcement.pid, announcement.start_ticks) for announcement in announced):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True
