"""From the summaries of all runs to the result of an audit."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.config import Compare
from magneton_dist.detect import shadow, straggler
from magneton_dist.detect.runs import VariantRuns, total_j
from magneton_dist.detect.values import ValuesCheck, compare_parameters
from magneton_dist.energy.summary import RankSummary, corner_joules, run_joules
from magneton_dist.energy.verdict import Runs, compare
from magneton_dist.meters.profile import Profile
from magneton_dist.records.audit import (
    Audit,
    Comparison,
    Finding,
    Interval,
    Machine,
    RankResult,
    StateShare,
    VariantResult,
)
from magneton_dist.records.manifest import Manifest

DETECTORS = (shadow.alone, straggler.alone)
CONTENDED = 0.10  # more of the wanted CPU time than this spent waiting for a core: the run was disturbed


@dataclass(frozen=True)
class RunFacts:
    """One counted run.

    `parameters`: the digest (schema PARAMETERS) of the ranks that went on longest, by rank; it says what the
    variant computed.
    """

    manifest: Manifest
    ranks: dict[int, RankSummary]
    parameters: dict[int, pl.DataFrame]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def conclude(
    name: str,
    started: str,
    variants: dict[str, list[RunFacts]],
    baseline: str,
    rules: Compare,
    profile: Profile,
    notes: Sequence[str] = (),
    missing: Sequence[str] = (),
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
    """
    runs = {v: VariantRuns(v, [f.ranks for f in facts if f.ranks], profile) for v, facts in variants.items()}
    checks = {v: _values(variants[baseline], facts) for v, facts in variants.items() if baseline in variants}
    comparisons = [
        _comparison(variants[baseline], variants[v], baseline, v, rules, profile, checks.get(v))
        for v in variants
        if v != baseline and baseline in runs and runs[v].repeats and runs[baseline].repeats
    ]
    findings = [f for r in runs.values() if r.repeats for detect in DETECTORS for f in detect(r)]
    every = [s for r in runs.values() for run in r.repeats for s in run.values()]
    facts = [f for of_variant in variants.values() for f in of_variant]
    return Audit(
        name=name,
        started=started,
        machine=_machine(facts),
        energy_kind=min((r.energy_kind for r in runs.values() if r.repeats), key=_weakness, default="unmeasured"),
        energy_source=_distinct(s.energy_source for s in every) or "no meter",
        variants={
            v: _variant(variants[v], runs[v], checks.get(v), rules, is_baseline=v == baseline) for v in variants
        },
        comparison=comparisons[0] if comparisons else None,
        other_comparisons=comparisons[1:],
        findings=sorted(findings, key=_weight, reverse=True),
        missing=_once([*missing, *(m for f in facts for m in f.missing)]),
        notes=_once([*notes, *_run_notes(variants)]),
    )


def _weakness(kind: str) -> int:
    return ["unmeasured", "modelled", "apportioned", "replayed", "measured"].index(kind)


def _weight(finding: Finding) -> float:
    return finding.joules.mean if finding.joules is not None else finding.seconds


def _comparison(
    baseline: list[RunFacts],
    candidate: list[RunFacts],
    name: str,
    other: str,
    rules: Compare,
    profile: Profile,
    check: ValuesCheck | None,
) -> Comparison:
    """Compare the repeats that both variants have; a pair ran next to each other."""
    repeats = {f.manifest.repeat for f in baseline if f.ranks} & {f.manifest.repeat for f in candidate if f.ranks}

    def paired(facts: list[RunFacts], variant: str) -> VariantRuns:
        return VariantRuns(variant, [f.ranks for f in facts if f.ranks and f.manifest.repeat in repeats], profile)

    one, two = paired(baseline, name), paired(candidate, other)
    if not repeats:
        return Comparison(
            name, other, None, Interval(1.0), None, "inconclusive", "no repeat in which both variants have a record"
        )
    a, b = _runs(one, profile), _runs(two, profile)
    if a.unit != b.unit:  # tokens against steps say nothing
        a, b = _runs(one, profile, steps=True), _runs(two, profile, steps=True)
    agree = None if check is None else check.error <= rules.values
    return compare(a, b, rules, values_agree=agree, values_error=None if check is None else check.error)


def _runs(variant: VariantRuns, profile: Profile, *, steps: bool = False) -> Runs:
    repeats = variant.repeats
    energies = [run_joules(r.values()) for r in repeats]
    known = [e for e in energies if e is not None]
    modelled = variant.energy_kind == "modelled"
    units = [_units(r) for r in repeats]
    in_units = not steps and all(u is not None for u in units)
    work = [u if in_units and u is not None else float(sum(s.steps for s in r.values()))
            for r, u in zip(repeats, units, strict=True)]  # fmt: skip
    unit = next((s.unit for r in repeats for s in r.values() if s.unit), "step") if in_units else "step"
    return Runs(
        name=variant.name,
        time_s=np.array([max(s.window_s for s in r.values()) for r in repeats]),
        energy_j=np.array(known) if len(known) == len(energies) else None,
        corners_j=np.array([corner_joules(r.values(), profile.corners()) for r in repeats]) if modelled else None,
        work=np.array(work) if all(w > 0 for w in work) else None,
        unit=unit.rstrip("s"),
    )


def _units(run: dict[int, RankSummary]) -> float | None:
    """Units of all ranks; None when a rank that did steps does not say."""
    working = [s.units for s in run.values() if s.steps]
    return sum(u for u in working if u is not None) if working and all(u is not None for u in working) else None


def _values(baseline: list[RunFacts], other: list[RunFacts]) -> ValuesCheck | None:
    """Worst disagreement over the repeats, each compared with the baseline's repeat of the same number."""
    checks = []
    by_repeat = {f.manifest.repeat: f for f in baseline}
    for b in other:
        a = by_repeat.get(b.manifest.repeat)
        if a is None:
            continue
        for rank in sorted(a.parameters.keys() & b.parameters.keys())[:1]:
            check = compare_parameters(a.parameters[rank], b.parameters[rank])
            if check is not None:
                checks.append(check)
    return max(checks, key=lambda c: c.error, default=None)


def _variant(
    facts: list[RunFacts], runs: VariantRuns, check: ValuesCheck | None, rules: Compare, *, is_baseline: bool
) -> VariantResult:
    repeats = runs.repeats
    ranks = sorted({rank for r in repeats for rank in r})
    units = [u for r in repeats if (u := _units(r)) is not None]
    have_units = bool(repeats) and len(units) == len(repeats)
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
    joules, units = total_j(run.values()), _units(run)
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
        exit_code=max((s.exit_code for s in repeats if s.exit_code is not None), default=None),
    )


def _mean_share(shares: list[StateShare]) -> StateShare:
    joules = [s.j for s in shares if s.j is not None]
    return StateShare(
        float(np.mean([s.s for s in shares])), float(np.mean(joules)) if len(joules) == len(shares) else None
    )


def _machine(facts: list[RunFacts]) -> Machine:
    manifests = [f.manifest for f in facts]
    ranks = [r for m in manifests for r in m.ranks]
    return Machine(
        hosts=sorted({r.node for r in ranks}),
        devices=sorted({r.device for r in ranks}),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        versions=dict(manifests[0].versions) if manifests else {},
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.machine()
    except OSError:
        return platform.machine()


def _run_notes(variants: dict[str, list[RunFacts]]) -> list[str]:
    notes = []
    for name, facts in variants.items():
        if not facts:
            notes.append(f"{name}: no run of this variant could be counted")
        contention = [s.contention for f in facts for s in f.ranks.values() if s.contention is not None]
        if max(contention, default=0.0) > CONTENDED:
            notes.append(
                f"{name}: disturbed: its ranks waited for a core in up to {max(contention):.0%} of the time they "
                "wanted one; times and modelled joules include that"
            )
        for f in facts:
            notes += [f"{name}: {note}" for note in (*f.notes, *f.manifest.disturbed)]
            notes += [f"{name}: rank {rank}: {note}" for rank, s in f.ranks.items() for note in s.notes]
    return notes


def _once(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
