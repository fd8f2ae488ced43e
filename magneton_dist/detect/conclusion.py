"""From the summaries of all runs to the result of an audit."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from magneton_dist.config import Compare
from magneton_dist.detect import host, monitors, shadow, straggler
from magneton_dist.detect.comparison import RunFacts, check_values, compare_variants, units_of
from magneton_dist.detect.operators.alone import alone as idle_operators
from magneton_dist.detect.regions.classes import RunAll
from magneton_dist.detect.regions.records import Load, PairedSteps
from magneton_dist.detect.runs import CONTENDED, VariantRuns, most_contended, total_j, weakest
from magneton_dist.detect.values import ValuesCheck
from magneton_dist.energy.summary import RankSummary
from magneton_dist.errors import RecordError
from magneton_dist.meters.profile import Profile
from magneton_dist.records.audit import (
    Audit,
    Finding,
    Interval,
    Machine,
    RankResult,
    RegionResult,
    StateShare,
    VariantResult,
)

DETECTORS = (shadow.alone, straggler.alone, host.alone)
MOST_REGIONS = 200
_FIGURE = re.compile(r"\d[\d.,]*")


def conclude(
    name: str,
    started: str,
    variants: dict[str, list[RunFacts]],
    baseline: str,
    rules: Compare,
    profile: Profile,
    notes: Sequence[str] = (),
    missing: Sequence[str] = (),
    load: Load | None = None,
    run_all: RunAll | None = None,
) -> Audit:
    """Compare the variants, run the detectors, and put everything into an `Audit`.

    Args:
        name, started: of the audit.
        variants: the counted runs of each variant in the order of repeats; a variant without any is reported
            as missing.
        baseline: what the others are compared with.
        rules: what counts as a difference.
        profile: watts where they are modelled, and of the states that could replace a wasteful one.
        notes, missing: what is already known.
        load: a traced step of a rank of a variant's repeat (by its number); without it, regions are not compared and
            operators not looked at.
        run_all: does work in several processes at once; default: in this one.
    """
    runs = {v: VariantRuns(v, [f.ranks for f in facts if f.ranks], profile) for v, facts in variants.items()}
    checks = {v: check_values(variants[baseline], facts) for v, facts in variants.items() if baseline in variants}
    findings = [f for r in runs.values() if r.repeats for detect in DETECTORS for f in detect(r)]
    compared = [
        compare_variants((baseline, v), variants, rules, profile, checks.get(v), load, findings, run_all)
        for v in variants
        if v != baseline and baseline in runs and runs[v].repeats and runs[baseline].repeats
    ]
    comparisons = [c.comparison for c in compared]
    needless, unread = _needless(runs, variants, load)
    findings += [*(f for c in compared for f in c.findings), *needless]
    every = [s for r in runs.values() for run in r.repeats for s in run.values()]
    facts = [f for of_variant in variants.values() for f in of_variant]
    return Audit(
        name=name,
        started=started,
        machine=_machine(facts),
        energy_kind=weakest(r.energy_kind for r in runs.values() if r.repeats),
        energy_source=_distinct(s.energy_source for s in every) or "no rank left a record",
        variants={
            v: _variant(variants[v], runs[v], checks.get(v), rules, is_baseline=v == baseline) for v in variants
        },
        comparison=comparisons[0] if comparisons else None,
        other_comparisons=comparisons[1:],
        regions=_in_turn([c.regions for c in compared])[:MOST_REGIONS],
        findings=sorted(findings, key=weight, reverse=True),
        missing=_once([*missing, *_missing(variants)]),
        notes=_once([
            *notes, *(n for c in compared for n in c.notes), *unread, *_assumed(runs.values(), findings),
            *_run_notes(variants, runs),
        ]),
    )


def _needless(
    runs: dict[str, VariantRuns], variants: dict[str, list[RunFacts]], load: Load | None
) -> tuple[list[Finding], list[str]]:
    """Findings on the operators of each variant, and why some could not be looked at."""
    findings, notes = [], []
    for name, of_variant in runs.items():
        if load is None or not of_variant.repeats:
            continue
        repeats = [f.manifest.repeat for f in variants[name] if f.ranks]
        try:
            findings += idle_operators(of_variant, PairedSteps(load, repeats))
        except RecordError as error:
            notes.append(f"{name}: operators were not looked at: {error}")
    return findings, notes


def _assumed(runs: Iterable[VariantRuns], findings: Sequence[Finding]) -> Iterator[str]:
    """Where a finding sets joules that were measured against watts that were not."""
    named = {f.variant for f in findings if f.kind in ("shadow-collective", "straggler-wait")}
    for variant in runs:
        if variant.name in named and variant.saving_kind != variant.energy_kind:
            yield (
                f"{variant.name}: joules of findings are above what an idle device would draw; those watts are not "
                f"measured but of {variant.profile.device}, profile {variant.profile.name} (calibrate measures them)"
            )


def _in_turn(ranked: Sequence[Sequence[RegionResult]]) -> list[RegionResult]:
    """The first of each comparison, then the second of each, ...: every one keeps its own order."""
    return [region for row in zip_longest(*ranked) for region in row if region is not None]


def weight(finding: Finding) -> tuple[float, float]:
    """Of two findings the one with the greater weight comes first: memory, then joules, then seconds."""
    return finding.bytes or 0.0, finding.joules.mean if finding.joules is not None else finding.seconds


def _variant(
    facts: list[RunFacts], runs: VariantRuns, check: ValuesCheck | None, rules: Compare, *, is_baseline: bool
) -> VariantResult:
    repeats = runs.repeats
    ranks = sorted({rank for r in repeats for rank in r})
    units = [u for r in repeats if (u := units_of(r)) is not None]
    whole = all(len(f.ranks) >= f.manifest.world_size for f in facts if f.ranks)
    have_units = bool(repeats) and len(units) == len(repeats) and whole
    return VariantResult(
        runs=len(repeats),
        energy_j=runs.over_repeats(lambda run: total_j(run.values())),
        energy_per_unit_j=runs.over_repeats(_per_unit) if have_units else None,
        time_s=runs.over_repeats(lambda run: max(s.window_s for s in run.values())) or Interval(0.0),
        values_agree=None if check is None else is_baseline or check.error <= rules.values,
        values_error=None if check is None else check.error,
        ranks=[_rank(rank, [r[rank] for r in repeats if rank in r]) for rank in ranks],
        unit=next((s.unit for r in repeats for s in r.values() if s.unit), None) if have_units else None,
        steps=round(float(np.mean([sum(s.steps for s in r.values()) for r in repeats]))) if repeats else 0,
        units=float(np.mean(units)) if have_units else None,
        command=facts[0].manifest.command if facts else [],
        exit_codes=[f.manifest.exit_code if f.manifest.exit_code is not None else -1 for f in facts],
    )


def _per_unit(run: dict[int, RankSummary]) -> float | None:
    joules, units = total_j(run.values()), units_of(run)
    return None if joules is None or not units else joules / units


def _rank(rank: int, repeats: list[RankSummary]) -> RankResult:
    """Means over the repeats of one rank."""
    n = len(repeats)
    keys = sorted({key for s in repeats for key in s.states})
    energies = [s.energy_j for s in repeats if s.energy_j is not None]
    units = [s.units for s in repeats if s.units is not None]
    contention = [s.contention for s in repeats if s.contention is not None]
    first = repeats[0]
    return RankResult(
        rank=rank,
        node=first.node,
        device=first.device,
        energy_j=float(np.mean(energies)) if len(energies) == n else None,
        states={key: _mean_share([s.states.get(key, StateShare(0.0, 0.0)) for s in repeats]) for key in keys},
        steps=round(float(np.mean([s.steps for s in repeats]))),
        units=float(np.mean(units)) if len(units) == n else None,
        contention=float(np.mean(contention)) if contention else None,
        collectives=round(float(np.mean([s.collectives for s in repeats]))),
        exit_code=max((s.exit_code for s in repeats if s.exit_code is not None), key=abs, default=None),
        idle_s=host.idle_seconds(repeats),
        unjoined_s=float(np.mean([s.unjoined_s for s in repeats])),
        monitors=monitors.of_repeats(repeats),
    )


def _mean_share(shares: list[StateShare]) -> StateShare:
    joules = [s.j for s in shares if s.j is not None]
    return StateShare(
        float(np.mean([s.s for s in shares])), float(np.mean(joules)) if len(joules) == len(shares) else None
    )


def _machine(facts: list[RunFacts]) -> Machine:
    manifests = [f.manifest for f in facts]
    ranks = [r for m in manifests for r in m.ranks]
    hosts = sorted({r.node for r in ranks})
    here = os.uname().nodename in hosts  # else it was recorded elsewhere, and only analysed on this machine
    return Machine(
        hosts=hosts,
        devices=sorted({r.device for r in ranks}),
        cpu=_cpu_name() if here else "",
        cores=(os.cpu_count() or 0) if here else 0,
        versions=dict(manifests[0].versions) if manifests else {},
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.machine()
    except OSError:
        return platform.machine()


def _run_notes(variants: dict[str, list[RunFacts]], runs: dict[str, VariantRuns]) -> list[str]:
    notes = []
    for name, facts in variants.items():
        if not facts:
            notes.append(f"{name}: no run of this variant could be counted")
        contention = most_contended(f.ranks for f in facts)
        if contention > CONTENDED:
            notes.append(
                f"{name}: disturbed: its ranks waited for a core in up to {contention:.0%} of the time they "
                "wanted one; times and modelled joules include that"
            )
        notes += [f"{name}: {note}" for note in monitors.notes([f.ranks for f in facts])]
        if name in runs and runs[name].repeats and not facts[0].manifest.command:  # of traces: it cannot be repeated
            notes += [f"{name}: {line}" for line in straggler.passed_over(runs[name])]
        for f in facts:
            notes += [f"{name}: {note}" for note in (*f.notes, *f.manifest.disturbed)]
            notes += [f"{name}: {note}" for note in _of_ranks(f.ranks)]
    return notes


def _of_ranks(ranks: Mapping[int, RankSummary]) -> Iterator[str]:
    """What the summaries note, one line for ranks that note the same or only other figures."""
    alike: dict[str, dict[int, str]] = {}
    for rank, summary in sorted(ranks.items()):
        for note in summary.notes:
            alike.setdefault(_FIGURE.sub("#", note), {}).setdefault(rank, note)
    for by_rank in alike.values():
        (first, note), last, n = next(iter(by_rank.items())), max(by_rank), len(by_rank)
        if n == 1:
            yield f"rank {first}: {note}"
            continue
        who = f"ranks {first}–{last}" if last - first + 1 == n else f"{n} ranks from {first} to {last}"
        same = len(set(by_rank.values())) == 1
        yield f"{who}: {note}" if same else f"{who}, each of itself, such as rank {first}: {note}"


def _missing(variants: dict[str, list[RunFacts]]) -> Iterator[str]:
    """What did not arrive, with the run that it is of where there are several."""
    for name, facts in variants.items():
        for f in facts:
            of = f"{name} repeat {f.manifest.repeat}: " if len(facts) > 1 else f"{name}: " if len(variants) > 1 else ""
            yield from (f"{of}{what}" for what in f.missing)


def _once(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
