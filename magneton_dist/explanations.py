"""Causes of an audit's findings: of one that is asked for, or of the costliest within a budget of time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from magneton_dist import audits
from magneton_dist.audits import Outcome
from magneton_dist.diagnosis.explain import (
    NO_JOBS,
    Jobs,
    explained,
    explained_region,
    explained_shadow,
    worth_telling,
)
from magneton_dist.diagnosis.joins import SHADOW, without_shadow
from magneton_dist.diagnosis.kept import OF_OPERATORS, keep
from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.diagnosis.recorded import Sides
from magneton_dist.errors import InputError, MagnetonError
from magneton_dist.records.audit import Audit, Finding, RegionResult
from magneton_dist.records.store import AuditRecord, RunRecord, load

MOST_FINDINGS = 3  # that `launch` explains
LEAST_SHARE = 0.01  # of a step, that a region without a finding must seem to differ by
SEEMS = 1.1  # ratio of times of a region's sides
MOST_REGIONS = 4  # without a finding that it looks at as well
REGION = "region:"
Say = Callable[[str], None]


def explain(
    folder: Path, which: str, budget_s: float, say: Say = lambda _: None, jobs: Jobs = NO_JOBS
) -> tuple[Outcome, Finding]:
    """Find the cause of one finding of the audit in `folder`, or of a region that differs.

    Args:
        folder: that `launch` left.
        which: number of the finding in the order of the report, from 1; its kind; or ``region:N``, region N of
            audit.json, from 1.
        budget_s: time that this may take.
        say: is told what happens.
        jobs: of the configuration, by variant, to run them again where their Python code parts.

    Returns:
        the outcome with the cause in it, and the finding; one on a region that is not worth telling is not in the
        outcome.

    Raises:
        InputError: there is no such record, finding or region.
    """
    outcome = audits.audit(folder)
    sides = Sides(_runs(folder))
    with Laboratory(budget_s) as laboratory:
        if which.startswith(REGION):
            region = _region(outcome.audit, which, folder)
            found = explained_region(region, outcome.audit, sides, laboratory, say, jobs)
            return _with({}, [found] if worth_telling(found) else [], outcome), found
        place = _place(outcome.audit, which, folder)
        finding = outcome.audit.findings[place]
        if finding.kind == SHADOW:
            found = explained_shadow(finding, outcome.audit, sides, laboratory, say, jobs)
        else:
            found = explained(finding, sides, laboratory, say, jobs)
    return _with({place: found}, [], outcome), found


def explain_costliest(
    outcome: Outcome, budget_s: float, say: Say = lambda _: None, jobs: Jobs = NO_JOBS
) -> Outcome:
    """Find causes of the costliest findings of `outcome` while there is time.

    Regions are looked at as well whose difference the runs themselves were too noisy to show. Ctrl-C ends the search,
    and the outcome says that it was interrupted. `jobs` (of the configuration, by variant) are run again, as far as
    the costliest `shadow-collective` needs it.
    """
    audit = outcome.audit
    places = [place for place, finding in enumerate(audit.findings) if finding.kind in OF_OPERATORS][:MOST_FINDINGS]
    known = [finding.where.operators for finding in audit.findings]
    floor_s = LEAST_SHARE * sum(_seconds(region)[1] for region in audit.regions)
    regions = [r for r in audit.regions if _unclear(r, floor_s) and r.operators not in known][:MOST_REGIONS]
    shadows = [p for p, f in enumerate(audit.findings) if f.kind == SHADOW and jobs and without_shadow(f, audit)][:1]
    if budget_s <= 0 or not (places or regions or shadows):
        return outcome
    found: dict[int, Finding] = {}
    new: list[Finding] = []
    try:
        sides = Sides(_runs(outcome.folder))
        with Laboratory(budget_s) as laboratory:
            for place in places:
                found[place] = explained(audit.findings[place], sides, laboratory, say)
            for place in shadows:
                found[place] = explained_shadow(audit.findings[place], audit, sides, laboratory, say, jobs)
            for region in regions:
                finding = explained_region(region, audit, sides, laboratory, say)
                new += [finding] if worth_telling(finding) else []
    except MagnetonError as error:  # the audit stands without causes
        noted = msgspec.structs.replace(audit, notes=[*audit.notes, f"causes were not looked for any further: {error}"])
        outcome = replace(outcome, audit=noted)
    except KeyboardInterrupt:
        outcome = replace(outcome, interrupted=signal.SIGINT.name)
    return _with(found, new, outcome)


def _unclear(region: RegionResult, floor_s: float) -> bool:
    """Do the costs of equal work seem to differ, although no finding came of it?"""
    less_s, more_s = _seconds(region)
    matched = region.kind == "matched" and not region.differs and bool(region.operators)
    return matched and more_s >= SEEMS * less_s and more_s - less_s >= floor_s


def _seconds(region: RegionResult) -> tuple[float, float]:
    """Of a step on the side that takes less time, and on the other."""
    less_s, more_s = sorted(side.seconds for side in region.sides.values())
    return less_s, more_s


def _runs(folder: Path) -> Mapping[str, Mapping[int, RunRecord]]:
    record = load(folder)
    assert isinstance(record, AuditRecord)
    return record.runs


def _place(audit: Audit, which: str, folder: Path) -> int:
    if which.isdecimal() and 1 <= int(which) <= len(audit.findings):
        return int(which) - 1
    of_kind = [place for place, finding in enumerate(audit.findings) if finding.kind == which]
    if of_kind:
        return of_kind[0]
    known = "; ".join(f"{n} {f.kind}" for n, f in enumerate(audit.findings[:10], start=1)) or "none"
    regions = f"; its regions are {REGION}1 to {REGION}{len(audit.regions)}" if audit.regions else ""
    raise InputError(f"has no finding {which}", where=str(folder), do=f"its findings are: {known}{regions}")


def _region(audit: Audit, which: str, folder: Path) -> RegionResult:
    number = which.removeprefix(REGION)
    if not number.isdecimal() or not 1 <= int(number) <= len(audit.regions):
        do = f"say {REGION}1 to {REGION}{len(audit.regions)}" if audit.regions else "it compares no regions"
        raise InputError(f"has no {which}", where=str(folder), do=do)
    return audit.regions[int(number) - 1]


def _with(found: dict[int, Finding], new: Sequence[Finding], outcome: Outcome) -> Outcome:
    """`outcome` with these findings in their places and new ones behind them, kept in its folder."""
    findings = [found.get(place, finding) for place, finding in enumerate(outcome.audit.findings)]
    known = [finding.where.operators for finding in findings if finding.kind == "knob"]
    findings += [finding for finding in new if finding.where.operators not in known]
    audit = msgspec.structs.replace(outcome.audit, findings=findings)
    return replace(outcome, audit=keep(audit, outcome.folder))
