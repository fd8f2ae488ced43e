"""Audits: run the variants or read their record, analyse every run, conclude."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from magneton_dist.cluster.analysis import Analysis
from magneton_dist.cluster.driver import OnProgress, audit_runs
from magneton_dist.cluster.outcome import RunOutcome
from magneton_dist.cluster.recovery import finish_unfinished
from magneton_dist.cluster.tasks import RunAll
from magneton_dist.config import AuditConfig, Compare, Energy
from magneton_dist.detect.comparison import RunFacts
from magneton_dist.detect.conclusion import conclude, weight
from magneton_dist.detect.counterfactuals import RankRecorded, counterfactuals
from magneton_dist.detect.regions.records import RecordedSteps
from magneton_dist.detect.slow_workers import slow_workers
from magneton_dist.diagnosis.explain import with_arguments, with_waits
from magneton_dist.diagnosis.kept import remembered
from magneton_dist.diagnosis.recorded import Sides
from magneton_dist.diagnosis.snapshot import differences
from magneton_dist.drawn_runs import run_bands
from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import ClusterError, RecordError
from magneton_dist.meters import Profile, load_profile
from magneton_dist.pipeline import MODELLED, RunAnalysis, analyse, collect, gpu_uuids, join, open_sampler, summarise
from magneton_dist.records.audit import Audit
from magneton_dist.records.manifest import Manifest
from magneton_dist.records.operations import read_operations
from magneton_dist.records.store import MANIFEST, RunRecord, load
from magneton_dist.reports.bands import RunBands
from magneton_dist.reports.figures import ranks_text
from magneton_dist.run_settings import Runs, advised, snapshots, watts_of

SETTINGS = "settings.json"
FEW_RANKS = 2  # that are named one by one


class Settings(BaseModel):
    """What an analysis of the record must know besides the runs; no environment, so no secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    started: str  # UTC, ISO 8601
    baseline: str
    compare: Compare
    profile: Profile | None  # watts that were modelled with, or what `calibrate` found of the meter

    @classmethod
    def of(cls, config: AuditConfig, profile: Profile | None, started: str) -> Settings:
        """The settings of an audit that starts."""
        return cls(name=config.name, started=started, baseline=config.baseline, compare=config.compare, profile=profile)

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Those of the audit in `folder`.

        Raises:
            RecordError: missing or damaged.
        """
        path = folder / SETTINGS
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            what = _first_fault(error) if isinstance(error, ValidationError) else str(error)
            raise RecordError(f"cannot be read: {what}", where=str(path), do="copy the record again") from error

    def write(self, folder: Path) -> None:
        """Write them into `folder`, atomically."""
        draft = folder / f".{SETTINGS}.tmp"
        draft.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / SETTINGS)


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else fault["msg"]


@dataclass(frozen=True)
class Outcome:
    """What `launch` and `audit` come to.

    Attributes:
        audit: the result.
        folder: where the record lies.
        runs: a representative repeat of each variant over time.
        output: the end of what a failed job printed, by variant.
        interrupted: the signal that ended the audit before its time (SIGINT, ...); empty when none did.
    """

    audit: Audit
    folder: Path
    runs: list[RunBands]
    output: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""


def launch(
    config: AuditConfig, *, address: str | None = None, on_progress: OnProgress = lambda _: None
) -> Outcome:
    """Run all variants of `config` and audit them."""
    profile = _configured_profile(config.energy)
    analysis = Analysis(open_sampler, collect, join, summarise, gpu_uuids, profile)
    settings = Settings.of(config, profile, datetime.now(UTC).isoformat(timespec="milliseconds"))
    # written before the first run, so that `audit` can finish what a killed driver leaves
    return audit_runs(
        config, analysis, partial(_launched, config, settings), address=address, on_progress=on_progress,
        prepare=settings.write,
    )  # fmt: skip


def _launched(
    config: AuditConfig, settings: Settings, outcomes: Sequence[RunOutcome], run_all: RunAll | None
) -> Outcome:
    """Conclude from what running the variants came to."""
    if not outcomes:
        raise ClusterError("no run was made", where=config.name, do="see the messages above")
    folder = outcomes[0].folder.parent.parent
    counted = [o for o in outcomes if not o.discarded]
    facts: dict[str, list[RunFacts]] = {variant: [] for variant in config.variants}
    runs: dict[str, dict[int, RunRecord]] = {variant: {} for variant in config.variants}
    for outcome in counted:
        run = runs[outcome.variant][outcome.manifest.repeat] = RunRecord(outcome.folder)
        facts[outcome.variant].append(
            RunFacts(outcome.manifest, dict(outcome.summaries), _digests(run, outcome.summaries), outcome.missing)
        )
    failed = [o for o in outcomes if o.exit_code and not o.manifest.stopped and not o.stopped]
    missing = [
        f"{o.variant} {'warm-up' if o.discarded else f'repeat {o.repeat}'}: "
        + (f"stopped: {o.stopped}" if o.stopped else f"the job ended with exit code {o.exit_code}")
        for o in outcomes
        if o.stopped or o in failed
    ]
    concluded = conclude_runs(folder, settings, facts, runs, missing, run_all=run_all)
    stops = [o.stopped.partition(":")[0] for o in outcomes]
    return replace(
        concluded,
        output={o.variant: o.output for o in failed if o.output},
        interrupted=next((stop for stop in stops if stop in signal.Signals.__members__), ""),
    )


def audit(folder: Path, profile: Profile | None = None) -> Outcome:
    """Analyse the record of an audit again, first of all what it could not finish itself.

    `profile` replaces the watts that it was modelled with.
    """
    finish_unfinished(folder, Analysis(open_sampler, collect, join, summarise, gpu_uuids, profile))
    record = load(folder)
    if isinstance(record, RunRecord):
        raise RecordError(
            "is one run, not an audit", where=str(folder), do=f"give {record.folder.parent.parent}"
        )
    settings = Settings.read(folder)
    if profile is not None:
        settings = settings.model_copy(update={"profile": profile})
    order = sorted(record.runs, key=lambda variant: variant != settings.baseline)  # the baseline first
    facts: dict[str, list[RunFacts]] = {}
    analysed: dict[tuple[str, int], RunAnalysis] = {}
    for variant in order:
        facts[variant] = []
        for repeat, run in record.runs[variant].items():
            done = analyse(run, settings.profile)
            facts[variant].append(_facts(done))
            if len(record.runs) == len(record.runs[variant]) == 1:  # more would not fit into memory
                analysed[variant, repeat] = done
    lost = [f"{run.parent.name} repeat {run.name}: no {MANIFEST}" for run in _without_manifest(folder)]
    return conclude_runs(folder, settings, facts, record.runs, lost, analysed=analysed)


def _without_manifest(folder: Path) -> list[Path]:
    runs = (path.parent for path in sorted(folder.glob("*/*/ranks")))
    return [run for run in runs if run.name.isdecimal() and not (run / MANIFEST).exists()]


def reanalysed(run: RunRecord, profile: Profile | None) -> RunFacts:
    """The facts of a recorded run; `profile` replaces the watts that it was modelled with."""
    return _facts(analyse(run, profile))


def _facts(done: RunAnalysis) -> RunFacts:
    """The facts of an analysed run, with what is missing of it."""
    run = done.record
    summaries = {rank: account.summary for rank, account in done.accounts.items()}
    gone = (*_without_record(run.missing, done.manifest.world_size), *_without_tables(run))
    missing = (*done.manifest.missing, *(m for m in gone if m not in done.manifest.missing))
    notes = (*done.joined.notes, *_without_calls(done.manifest, summaries))
    return RunFacts(done.manifest, summaries, _digests(run, summaries), missing, notes)


def _without_calls(manifest: Manifest, ranks: Mapping[int, RankSummary]) -> list[str]:
    """Ranks of a distributed job that have other numbers of collectives than almost all, in words."""
    alone = {rank.rank for rank in manifest.ranks if not rank.distributed}
    calls = {rank: summary.collectives for rank, summary in ranks.items() if rank not in alone}
    usual, ranks_so = max(Counter(calls.values()).items(), key=lambda item: item[1], default=(0, 0))
    others = len(calls) - ranks_so
    if manifest.command or others > FEW_RANKS or ranks_so <= max(1, others):
        return []
    return [
        f"rank {rank}: {count or 'no'} collective(s) where other ranks have {usual}: is its trace whole?"
        for rank, count in calls.items()
        if count != usual
    ]


def _without_record(ranks: Sequence[int], world_size: int) -> tuple[str, ...]:
    """These ranks in words, a few lines for any number of them."""
    if len(ranks) <= FEW_RANKS:
        return tuple(f"rank {rank}: no record" for rank in ranks)
    return (f"{ranks_text(ranks)} of {world_size}: no record",)


def _without_tables(run: RunRecord) -> list[str]:
    """Tables that ranks should have left, in words; one line for all ranks that lack the same."""
    lacking: dict[str, list[int]] = {}
    for rank, record in run.ranks.items():
        if record.missing:
            lacking.setdefault(", ".join(record.missing), []).append(rank)
    return [f"{ranks_text(ranks)}: no table of {tables}" for tables, ranks in lacking.items()]


def _digests(run: RunRecord, ranks: Mapping[int, RankSummary]) -> dict[int, pl.DataFrame]:
    """Final parameters of the lowest rank among those that did the most steps."""
    most = max((s.steps for s in ranks.values()), default=0)
    last = [rank for rank, s in sorted(ranks.items()) if s.steps == most][:1]
    return {rank: run.ranks[rank].parameters for rank in last if rank in run.ranks}


def conclude_runs(
    folder: Path,
    settings: Settings,
    facts: dict[str, list[RunFacts]],
    runs: Runs,
    missing: Sequence[str] = (),
    notes: Sequence[str] = (),
    analysed: Mapping[tuple[str, int], RunAnalysis] | None = None,
    run_all: RunAll | None = None,
) -> Outcome:
    """Conclude from the facts of runs and their records.

    Args:
        folder: where the result belongs.
        settings: of the audit.
        facts: of the counted runs of each variant.
        runs: their records, by variant and the number of the repeat.
        missing, notes: what is already known.
        analysed: runs by variant and repeat that need not be analysed again.
        run_all: does work in several processes at once; default: in this one.
    """
    watts, assumed = (settings.profile, []) if settings.profile else watts_of(facts)
    result = conclude(
        settings.name,
        settings.started,
        facts,
        settings.baseline,
        settings.compare,
        watts,
        notes=[*notes, *assumed],
        missing=missing,
        # not the runs' own ranks, which keep every table that was read
        load=RecordedSteps({v: {repeat: run.folder for repeat, run in r.items()} for v, r in runs.items()}),
        run_all=run_all,
    )
    bands = []
    for variant, of_variant in facts.items():
        typical = _typical(of_variant)
        if typical is not None:
            known = (analysed or {}).get((variant, typical.repeat))
            done = known or analyse(runs[variant][typical.repeat], settings.profile)
            bands.append(run_bands(done, typical))
            if not typical.command:  # of traces: nothing can be run again
                result = _with_counterfactuals(result, done, watts)
    knobs = snapshots(facts, runs)
    result = msgspec.structs.replace(
        result, settings=differences(knobs), notes=[*result.notes, *advised(knobs, facts, runs)]
    )
    result = with_arguments(with_waits(result), Sides(runs))
    return Outcome(remembered(result, folder), folder, bands)


def _with_counterfactuals(result: Audit, done: RunAnalysis, watts: Profile) -> Audit:
    """The audit with what its job would take if ranks, collectives or operations were as fast as their like."""
    operations = read_operations(done.record.folder)
    if operations.height:
        ranks_alone = {rank: of_rank.summary for rank, of_rank in done.accounts.items()}
        slow = slow_workers(done.manifest.variant, operations, ranks_alone, watts)
        named = [f.ranks for f in result.findings if f.kind == "straggler-wait"]
        more = [f for f in slow.findings if f.ranks not in named]
        return msgspec.structs.replace(
            result, counterfactuals=slow.counterfactuals, notes=[*slow.notes, *result.notes],
            findings=sorted([*result.findings, *more], key=weight, reverse=True),
        )  # fmt: skip
    ranks = {
        rank: RankRecorded(
            of_rank.summary, of_rank.states, done.record.ranks[rank].collectives, done.joined.joined.of(rank),
            done.record.ranks[rank].activities, done.record.ranks[rank].steps,
        )
        for rank, of_rank in done.accounts.items()
    }  # fmt: skip
    found, why_not = counterfactuals(done.manifest.variant, ranks)
    return msgspec.structs.replace(result, counterfactuals=found, notes=[*result.notes, *why_not])


def _typical(facts: list[RunFacts]) -> Manifest | None:
    """The repeat with the median time."""
    timed = sorted((max(s.window_s for s in f.ranks.values()), f.manifest.repeat) for f in facts if f.ranks)
    by_repeat = {f.manifest.repeat: f.manifest for f in facts}
    return by_repeat[timed[len(timed) // 2][1]] if timed else None


def _configured_profile(energy: Energy) -> Profile | None:
    if energy.meter.startswith(MODELLED):
        return load_profile(energy.meter.removeprefix(MODELLED))
    return None if energy.profile is None else load_profile(energy.profile)
