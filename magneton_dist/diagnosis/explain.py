"""The cause of a finding of an audit, as far as its record and fresh processes tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from magneton_dist.config import Job
from magneton_dist.diagnosis.joins import SHADOW, with_join_path, without_shadow
from magneton_dist.diagnosis.kept import OF_OPERATORS, seen_again, told
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError
from magneton_dist.diagnosis.operators import Diagnosis, Investigation
from magneton_dist.diagnosis.pairs import differing_arguments
from magneton_dist.diagnosis.paths import parted_words
from magneton_dist.diagnosis.python_path import with_python_path
from magneton_dist.diagnosis.recorded import Sides
from magneton_dist.diagnosis.waits import cause_of_shadow, cause_of_straggling
from magneton_dist.records.audit import Audit, Finding, OperatorsAt, Place, RegionResult

MOST_COMPARED = 10  # findings whose operators' arguments are compared
LEAST_RATIO = 1.1  # of the times of a call in both variants' worlds, for a finding to come of it
Say = Callable[[str], None]
Jobs = Mapping[str, Job]
NO_JOBS: Jobs = MappingProxyType({})


def with_waits(audit: Audit) -> Audit:
    """`audit` with the causes of waits and shadows, which its records tell without running anything."""
    causes = {SHADOW: cause_of_shadow, "straggler-wait": cause_of_straggling}
    findings = [told(f, causes[f.kind](f, audit)) if f.kind in causes else f for f in audit.findings]
    return msgspec.structs.replace(audit, findings=findings)


def with_arguments(audit: Audit, sides: Sides) -> Audit:
    """`audit` with the arguments of operators that differ, as evidence of the costliest findings on operators."""
    findings = []
    for number, finding in enumerate(audit.findings):
        if number < MOST_COMPARED and finding.kind in OF_OPERATORS and len(finding.where.operators) == 2:
            one, other = (sides.read(name, at) for name, at in finding.where.operators.items())
            differ = differing_arguments(one, other)
            if differ:
                finding = msgspec.structs.replace(
                    finding, evidence={**finding.evidence, "arguments_that_differ": "; ".join(differ)}
                )
        findings.append(finding)
    return msgspec.structs.replace(audit, findings=findings)


def explained(
    finding: Finding, sides: Sides, laboratory: Laboratory, say: Say = lambda _: None, jobs: Jobs = NO_JOBS
) -> Finding:
    """`finding` with its cause, as far as one was found, and what was tried.

    Args:
        finding: of an audit.
        sides: reads what the finding points to.
        laboratory: where fresh processes come from; when its time is over, what was found until then counts.
        say: is told what happens.
        jobs: of the configuration, by variant, to run them again; none: they are not.

    Raises:
        RecordError: what the finding points to is not in the record.
    """
    if finding.kind not in OF_OPERATORS:
        lines = finding.diagnosis or [f"findings of kind {finding.kind} have no cause that can be flipped"]
        return msgspec.structs.replace(finding, diagnosis=lines)
    cheap = next((name for name in finding.where.operators if name != finding.variant), None)
    new = told(finding, _investigated(finding.where, cheap, sides, laboratory, say, jobs))
    if finding.proof == "proved" != new.proof:  # what was proved before stays
        again = f"looked for again, and not proved this time: {new.diagnosis[-1]}"
        return msgspec.structs.replace(finding, diagnosis=list(dict.fromkeys([*finding.diagnosis, again])))
    return new


def explained_shadow(
    finding: Finding, audit: Audit, sides: Sides, laboratory: Laboratory, say: Say = lambda _: None,
    jobs: Jobs = NO_JOBS,
) -> Finding:  # fmt: skip
    """`finding`, a `shadow-collective`, with what the records say of it, and where a variant without one parts from it.

    Raises:
        RecordError: a variant of the audit is not in the record.
    """
    peer = without_shadow(finding, audit)
    found = cause_of_shadow(finding, audit)
    if peer is None or not finding.ranks or not finding.where.stack:
        return told(finding, found)
    new = told(finding, with_join_path(found, finding, peer, sides, jobs, laboratory.left_s(), say))
    if seen_again(finding) and not seen_again(new):  # what was seen before stays
        why = [line for line in new.diagnosis if line not in finding.diagnosis] if jobs else []
        return msgspec.structs.replace(finding, diagnosis=[*finding.diagnosis, *why])
    return new


def explained_region(
    region: RegionResult, audit: Audit, sides: Sides, laboratory: Laboratory, say: Say = lambda _: None,
    jobs: Jobs = NO_JOBS,
) -> Finding:  # fmt: skip
    """A finding of kind `knob` on a region that no finding is about; it counts only if it is `worth_telling`.

    What differs is measured in fresh processes, not in the runs, so it does not depend on their noise.

    Raises:
        RecordError: what the region points to is not in the record.
    """
    stack = next((stacks for side in region.sides.values() for stacks in side.stacks), [])
    place = Place(what=", ".join(region.phases), stack=stack, operators=region.operators)
    found = _investigated(place, None, sides, laboratory, say, jobs)
    times = found.cause.seconds if found.cause is not None else {}
    hungry, cheap = (f(times, key=times.__getitem__, default=region.baseline) for f in (max, min))
    more_s = times[hungry] - times[cheap] if times else 0.0
    proved = found.proof == "proved"
    told_apart = "what makes its calls differ is proved" if proved else "nothing was proved to make its calls differ"
    if len(times) == 2 and times[hungry] < LEAST_RATIO * times[cheap]:
        told_apart = f"made again in fresh processes, its calls' times are less than {LEAST_RATIO:g}x apart"
    elif len(times) == 2:
        ratio = f"{times[hungry] / times[cheap]:.1f}x"
        told_apart = f"{hungry} takes {ratio} the time of {cheap} for one call, made again in fresh processes"
    ranks = audit.variants[hungry].ranks
    steps = sum(rank.steps for rank in ranks)
    return told(
        Finding(
            kind="knob", title=f"{region.title}: {told_apart}",
            variant=hungry, joules=None, energy_kind="unmeasured", share=None,
            seconds=more_s * region.places * steps, ranks=[rank.rank for rank in ranks], where=place,
            evidence={"places": region.places, "seconds_more_of_one_call": more_s, "steps_of_all_ranks": steps}, fix="",
        ),
        found,
    )  # fmt: skip


def worth_telling(finding: Finding) -> bool:
    """Is its cause proved, and does the call take clearly longer in one variant's world?"""
    times = finding.cause.seconds.values() if finding.cause is not None else ()
    return finding.proof == "proved" and len(times) == 2 and max(times) >= LEAST_RATIO * min(times)


def _investigated(
    where: Place, cheap: str | None, sides: Sides, laboratory: Laboratory, say: Say, jobs: Jobs
) -> Diagnosis:
    if len(where.operators) != 2:
        return Diagnosis(lines=["its operators are not in the record"])
    from magneton_dist.tracer.knobs import ENVIRONMENT

    one, other = (sides.read(name, at) for name, at in where.operators.items())
    line = where.stack[0].rpartition(" ")[0] if where.stack else ""
    meter = next((_meter(sides, name, at) for name, at in where.operators.items()), "")
    investigation = Investigation((one, other), cheap, laboratory, os.environ, ENVIRONMENT, line, say, meter)
    manifests = [sides.run(name, at).manifest for name, at in where.operators.items()]
    parted = parted_words(manifests[0].command, manifests[1].command)
    if any(parted):
        mine, theirs = (words or "nothing" for words in parted)
        investigation.found.lines.append(
            f"command lines: {mine} only in {one.name}, {theirs} only in {other.name}"
        )
    nodes = {rank.node for manifest in manifests for rank in manifest.ranks}
    if nodes and os.uname().nodename not in nodes:
        text = f"counterfactual: made on {os.uname().nodename}, the job ran on {', '.join(sorted(nodes)[:4])}"
        investigation.found.lines.append(text)
    try:
        found = investigation.run()
        ranks = tuple(at.rank for at in where.operators.values())
        left_s = laboratory.left_s()
        return with_python_path(found, (one, other), (ranks[0], ranks[1]), jobs, cheap, left_s, say)
    except OutOfTimeError as error:
        investigation.found.lines.append(str(error))
        return investigation.found


def _meter(sides: Sides, name: str, at: OperatorsAt) -> str:
    """The meter of the rank that is shown; empty where it had none."""
    ranks = sides.run(name, at).manifest.ranks
    return next((rank.meter.name for rank in ranks if rank.rank == at.rank and rank.meter is not None), "")
