"""One variant against another: totals and verdict, then region by region, then states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import polars as pl

from magneton_dist.config import Compare
from magneton_dist.detect import schedule
from magneton_dist.detect.regions.classes import RunAll
from magneton_dist.detect.regions.comparing import RegionComparison, compare_regions
from magneton_dist.detect.regions.records import Load, PairedSteps
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.detect.values import ValuesCheck, compare_parameters
from magneton_dist.energy.summary import RankSummary, corner_joules, run_joules
from magneton_dist.energy.verdict import Runs, compare
from magneton_dist.matching.arrays import Floats
from magneton_dist.meters.profile import Profile
from magneton_dist.records.audit import Comparison, Finding, Interval, RegionResult
from magneton_dist.records.manifest import Manifest

FEW_RANKS = 8  # that are named one by one


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

    @property
    def failed(self) -> bool:
        """The job ended with an error, so what it did is not the whole of its work."""
        return bool(self.manifest.exit_code) and not self.manifest.stopped


@dataclass(frozen=True)
class Compared:
    """A comparison, with the regions, findings and notes that belong to it."""

    comparison: Comparison
    regions: list[RegionResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_variants(
    names: tuple[str, str],
    variants: Mapping[str, list[RunFacts]],
    rules: Compare,
    profile: Profile,
    check: ValuesCheck | None,
    load: Load | None,
    known: Sequence[Finding],
    run_all: RunAll | None = None,
) -> Compared:
    """Compare the repeats that both variants have finished; a pair ran next to each other.

    Args:
        names: of the baseline and the candidate.
        variants: the counted runs of each variant.
        rules, profile, load, run_all: as for `detect.conclusion.conclude`.
        check: of the variants' final parameters.
        known: findings on variants alone.
    """
    numbers = [{f.manifest.repeat for f in variants[name] if f.ranks and not f.failed} for name in names]
    repeats = [f.manifest.repeat for f in variants[names[0]] if f.manifest.repeat in numbers[0] & numbers[1]]
    if not repeats:
        failed = [name for name in names if variants[name] and all(f.failed for f in variants[name])]
        why = f"all runs of {' and '.join(failed)} failed" if failed else "no repeat that both variants have finished"
        return Compared(Comparison(*names, None, Interval(1.0), None, "inconclusive", why))
    one, two = (_paired(variants[name], name, repeats, profile) for name in names)
    regions = RegionComparison()
    if load is not None:
        regions = compare_regions(one, two, PairedSteps(load, repeats), rules, run_all)
    whole, notes = _with_equal_ranks(one, two)
    a, b = (_runs(runs, profile) for runs in whole)
    if a.unit != b.unit:  # tokens against steps say nothing
        a, b = (_runs(runs, profile, steps=True) for runs in whole)
    if one.world_size != two.world_size:
        a, b, notes = _of_jobs(one, a), _of_jobs(two, b), [*notes, _unequal(one, two, a.unit)]
    peaks = regions.peaks or (None, None)
    a, b = (replace(runs, memory_bytes=_memory(peak, len(repeats))) for runs, peak in zip((a, b), peaks, strict=True))
    agree = None if check is None else check.error <= rules.values
    comparison = compare(a, b, rules, values_agree=agree, values_error=None if check is None else check.error)
    comparison = msgspec.structs.replace(comparison, covered=regions.covered)
    findings = [*regions.findings, *schedule.pair(one, two, regions, known)]
    return Compared(comparison, regions.results, findings, [*_provenance(one, two), *notes, *regions.notes])


def _provenance(a: VariantRuns, b: VariantRuns) -> list[str]:
    kinds = a.energy_kind, b.energy_kind
    if kinds[0] == kinds[1] or "unmeasured" in kinds:
        return []
    return [f"{b.name} against {a.name}: the joules of {a.name} are {kinds[0]}, those of {b.name} {kinds[1]}"]


def _paired(facts: Sequence[RunFacts], name: str, repeats: Sequence[int], profile: Profile) -> VariantRuns:
    by_number = {f.manifest.repeat: f for f in facts}
    paired = [by_number[number] for number in repeats]
    return VariantRuns(name, [f.ranks for f in paired], profile, max(f.manifest.world_size for f in paired))


def _with_equal_ranks(a: VariantRuns, b: VariantRuns) -> tuple[tuple[VariantRuns, VariantRuns], list[str]]:
    """Both with the ranks that left a record on both sides, as half a job's joules are no less than a whole's."""
    lost = [f"{name} of {runs.name}" for runs in (a, b) if (name := _lost(runs))]
    if not lost:
        return (a, b), []
    between, who = f"{b.name} against {a.name}", " and ".join(lost)
    both = [run_a.keys() & run_b.keys() for run_a, run_b in zip(a.repeats, b.repeats, strict=True)]
    if a.world_size != b.world_size or not all(both):
        return (a, b), [f"{between}: without the joules and the work of {who}, of which there is no record"]
    one, two = (replace(runs, repeats=list(map(_of_ranks, runs.repeats, both))) for runs in (a, b))
    return (one, two), [f"{between}: joules, time and work are compared without {who}, of which there is no record"]


def _of_ranks(run: dict[int, RankSummary], ranks: Iterable[int]) -> dict[int, RankSummary]:
    return {rank: run[rank] for rank in sorted(ranks)}


def _lost(runs: VariantRuns) -> str:
    """Ranks without a record in some repeat, in words; may be empty."""
    lost = sorted(set(range(runs.world_size)) - set(runs.ranks))
    if len(lost) > FEW_RANKS:
        return f"{len(lost)} ranks"
    return f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}" if lost else ""


def _memory(peak_bytes: float | None, repeats: int) -> Floats | None:
    return None if not peak_bytes else np.full(repeats, peak_bytes)


def _runs(variant: VariantRuns, profile: Profile, *, steps: bool = False) -> Runs:
    repeats = variant.repeats
    energies = [run_joules(r.values()) for r in repeats]
    known = [e for e in energies if e is not None]
    modelled = variant.energy_kind == "modelled"
    units = [units_of(r) for r in repeats]
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


def _of_jobs(variant: VariantRuns, runs: Runs) -> Runs:
    """A step of the job counted once, whatever the number of its ranks; units are counted as they are said."""
    if runs.work is None or runs.unit != "step":
        return runs
    return replace(runs, work=runs.work / [len(run) for run in variant.repeats])


def _unequal(a: VariantRuns, b: VariantRuns, unit: str) -> str:
    how = (
        "a step of the job counts once, however many ranks do it; where every rank has data of its own, say how "
        "many tokens or samples with magneton_dist.step"
        if unit == "step"
        else f"the {unit}s that ranks report are added up; ranks that share a batch must report their part of it"
    )
    ranks = "rank" if b.world_size == 1 else "ranks"
    return f"{b.name} against {a.name}: {b.world_size} {ranks} against {a.world_size}: {how}"


def units_of(run: dict[int, RankSummary]) -> float | None:
    """Units of all ranks; None when a rank that did steps does not say."""
    working = [s.units for s in run.values() if s.steps]
    return sum(u for u in working if u is not None) if working and all(u is not None for u in working) else None


def check_values(baseline: list[RunFacts], other: list[RunFacts]) -> ValuesCheck | None:
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
