"""`host-idle` and `host-spin`: devices that idle for their host, hosts that spin for their device.

A device idles for the loader, for a host that has launched nothing yet, or between launch and start; profiler traces
tell it. A host that stands in a call that synchronises polls, unless the context was made to block: a core burns for
nothing. Traces tell how long hosts stood there; of jobs that were recorded, the clock of the main thread also tells
what CPU time that took, in the steps whose kernels were captured, and a host that slept is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from magneton_dist.detect.runs import VariantRuns, state_sum
from magneton_dist.detect.source_lines import user_frames
from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.audit import Finding, FindingKind, Place
from magneton_dist.records.host_times import IDLE

# of the ranks' time; less is not told
FLOOR_SHARE = {"loader": 0.02, "host": 0.10, "launch": 0.10, "sync": 0.20, "spin": 0.20}
MOST_CAUSES = 5
SPINNING = ("sync", "spin")
NO_WORKERS = "_SingleProcessDataLoaderIter"
_EVIDENCE = {"loader": "in", "sync": "within", "spin": "within"}


@dataclass(frozen=True)
class _Words:
    finding: FindingKind
    title: str
    fix: str


_WORDS = {
    "loader": _Words(
        "host-idle",
        "devices idle {seconds} while their hosts fetch data",
        "Let the loader work ahead: DataLoader(num_workers=..., prefetch_factor=..., persistent_workers=True, "
        "pin_memory=True), and copy with non_blocking=True.",
    ),
    "host": _Words(
        "host-idle",
        "devices idle {seconds} because their hosts have not launched the next kernel yet",
        "Give the host less to do between kernels: torch.compile(mode=\"reduce-overhead\") or CUDA graphs, foreach or "
        "fused optimizers, larger batches; leave out what makes it wait for the device (.item(), .cpu()).",
    ),
    "launch": _Words(
        "host-idle",
        "devices idle {seconds} between the launch of kernels and their start",
        "Launch fewer and larger kernels (torch.compile, CUDA graphs), or let streams wait for each other less.",
    ),
    "sync": _Words(
        "host-spin",
        "hosts stand {seconds} in calls that wait for the device, and keep a core busy with it",
        "Leave out what needs the result at once (.item(), .cpu(), torch.cuda.synchronize()), or read it a step later. "
        "Where the host must wait, let it sleep: cudaDeviceScheduleBlockingSync before the context is made.",
    ),
}  # fmt: skip
_WORDS["spin"] = replace(
    _WORDS["sync"], title="hosts keep a core busy for {seconds} with calls that wait for the device"
)


def alone(runs: VariantRuns) -> list[Finding]:
    """A finding for each kind of idling or spinning that is worth a reader's time."""
    clocked = any((s.host_times["kind"] == "spin").any() for s in runs.repeats[0].values())
    found = (_finding(runs, kind) for kind in FLOOR_SHARE if kind != ("sync" if clocked else "spin"))
    return [finding for finding in found if finding is not None]


def idle_seconds(repeats: Sequence[RankSummary]) -> dict[str, float]:
    """Why a rank's device idled, s, means over its repeats; empty where nothing tells it."""
    rows = pl.concat([s.host_times.select("kind", "duration_ns") for s in repeats])
    rows = rows.filter(pl.col("kind").is_in(IDLE))
    sums = rows.group_by("kind").agg(pl.col("duration_ns").sum()).sort("kind")
    return {kind: ns / 1e9 / len(repeats) for kind, ns in sums.iter_rows()}


def _finding(runs: VariantRuns, kind: str) -> Finding | None:
    first = runs.repeats[0]
    rows = {rank: s.host_times.filter(pl.col("kind") == kind) for rank, s in first.items() if s.host_times.height}
    rows = {rank: of_rank for rank, of_rank in rows.items() if of_rank.height}
    if not rows:
        return None
    # what the captured steps took, carried to the others
    spent = {rank: _seconds(of_rank) * _steps_per_captured(first[rank]) for rank, of_rank in rows.items()}
    seconds = sum(spent.values())
    rank_seconds = sum(s.window_s for s in first.values())
    if seconds < FLOOR_SHARE[kind] * rank_seconds:
        return None
    ranks = sorted(rank for rank in rows if spent[rank] >= FLOOR_SHARE[kind] * first[rank].window_s)
    words = _WORDS[kind]
    # a spinning core's joules are not the device's, and no trace tells them
    joules = None if kind in SPINNING else runs.over_repeats(lambda run: _idle_joules(run, kind))
    worst = max(rows, key=lambda rank: _seconds(rows[rank]))
    causing = rows[worst]
    if kind == "spin":  # CPU time of all such calls together; by which operators is known of the time they stood
        causing = first[worst].host_times.filter(pl.col("kind") == "sync")
    causes = causing.group_by("what", "stack_id").agg(pl.col("duration_ns", "count").sum())
    causes = causes.sort("duration_ns", "what", descending=[True, False])
    top = causes.row(0, named=True)
    stack = first[worst].stacks.get(top["stack_id"], []) if top["stack_id"] is not None else []
    steps = rows[worst]["step"]
    # what torch names the iterator of DataLoader(num_workers=0)
    without_workers = ", by a DataLoader without workers" if kind == "loader" and NO_WORKERS in top["what"] else ""
    return Finding(
        kind=words.finding,
        title=words.title.format(seconds=f"{seconds / rank_seconds:.0%} of their time") + without_workers,
        variant=runs.name,
        joules=joules,
        energy_kind="unmeasured" if joules is None else runs.energy_kind,
        share=runs.share_of_run(joules),
        seconds=seconds,
        ranks=ranks or [worst],
        where=Place(
            steps=(int(steps.to_numpy().min()), int(steps.to_numpy().max())),
            what=_what(kind, top["what"]), stack=user_frames(stack) or stack[:3],
        ),
        evidence={
            "share_of_rank_seconds": seconds / rank_seconds,
            "stretches": sum(int(of_rank["count"].sum()) for of_rank in rows.values()),
            _EVIDENCE.get(kind, "before"): [
                f"{what or 'unknown'} {ns / 1e6:.3g} ms" for what, _, ns, _ in causes.head(MOST_CAUSES).iter_rows()
            ],
            **_about_waiting(runs, kind),
        },
        fix=words.fix,
        confidence=0.6 if kind == "sync" else 0.9,  # of a trace nobody knows whether the context was made to block
    )  # fmt: skip


def _about_waiting(runs: VariantRuns, kind: str) -> dict[str, Any]:
    """What is known of hosts that wait for the device."""
    if kind not in SPINNING:
        return {}
    unmeasured = {"joules_are": "the host's, which neither a trace nor a device's meter holds"}
    if kind == "sync":
        return {"scheduling_flags": "not in the trace", **unmeasured}
    first = runs.repeats[0].values()
    stood = sum(_seconds(s.host_times.filter(pl.col("kind") == "sync")) * _steps_per_captured(s) for s in first)
    return {
        "waiting_s": stood,
        "captured_steps": sum(s.captured_steps for s in first),
        "how": "CPU time of the main thread that was used within such calls at least, carried to all steps",
        **unmeasured,
    }


def _steps_per_captured(summary: RankSummary) -> float:
    return summary.steps / summary.captured_steps if summary.captured_steps else 1.0


def _what(kind: str, name: str) -> str:
    if kind in SPINNING:
        return f"synchronisation within {name}" if name else "synchronisation"
    if kind == "loader":
        return f"in {name}" if name else ""
    return f"before {name}" if name else ""


def _seconds(rows: pl.DataFrame) -> float:
    return float(rows["duration_ns"].sum()) / 1e9


def _idle_joules(run: dict[int, RankSummary], kind: str) -> float | None:
    """What the devices drew while they idled for this."""
    total = 0.0
    for summary in run.values():
        idle = _seconds(summary.host_times.filter(pl.col("kind") == kind))
        if idle <= 0:
            continue
        seconds, joules = state_sum(summary, "working", ("idle",))
        if joules is None or seconds <= 0:
            return None
        total += joules * min(1.0, idle / seconds)
    return total
