"""Where causes are kept: beside the record, for `audit` to have them again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from magneton_dist.diagnosis.operators import Diagnosis
from magneton_dist.records.audit import Audit, Finding

DIAGNOSES = "diagnoses.json"
OF_OPERATORS = ("region", "trade-off")
KEPT = (*OF_OPERATORS, "knob")  # whatever came of looking for a cause


def told(finding: Finding, diagnosis: Diagnosis) -> Finding:
    """`finding` with this diagnosis."""
    return msgspec.structs.replace(
        finding, cause=diagnosis.cause, proof=diagnosis.proof, fix=diagnosis.fix or finding.fix,
        diagnosis=diagnosis.lines,
    )  # fmt: skip


def keep(audit: Audit, folder: Path) -> Audit:
    """Keep the diagnoses of `audit`, and the findings that came of some, beside its record and those kept there.

    Returns:
        `audit` with those that another one kept meanwhile, too; where they cannot be kept, a note that says so.
    """
    mine = {_key(f): f for f in audit.findings if f.diagnosis and (f.kind in KEPT or seen_again(f))}
    try:
        with _alone(folder):
            theirs, notes = _kept(folder)
            kept = theirs | mine
            data = msgspec.json.format(msgspec.json.encode(list(kept.values())), indent=2) + b"\n"
            write_whole(folder / DIAGNOSES, data)
    except OSError as error:
        kept, notes = mine, [f"causes were found, but cannot be kept in {folder}: {error.strerror}"]
    return _with(kept, notes, audit)


def seen_again(finding: Finding) -> bool:
    """Did running its variants again tell more than the records do?"""
    return finding.cause is not None and "lines" in finding.cause.agreed


def remembered(audit: Audit, folder: Path) -> Audit:
    """`audit` with the diagnoses that were kept in `folder`; where they are damaged, a note that says so."""
    return _with(*_kept(folder), audit)


def _with(kept: Mapping[str, Finding], notes: Sequence[str], audit: Audit) -> Audit:
    findings, left = [], dict(kept)
    for finding in audit.findings:
        known = left.pop(_key(finding), None)
        if known is not None:
            finding = told(finding, Diagnosis(known.proof, known.cause, known.fix, known.diagnosis))
        findings.append(finding)
    findings += [finding for finding in left.values() if finding.kind == "knob"]
    return msgspec.structs.replace(audit, findings=findings, notes=[*audit.notes, *notes])


def _kept(folder: Path) -> tuple[dict[str, Finding], list[str]]:
    """What is kept there; a file that cannot be read is set aside, which is noted."""
    path = folder / DIAGNOSES
    try:
        return {_key(f): f for f in msgspec.json.decode(path.read_bytes(), type=list[Finding])}, []
    except FileNotFoundError:
        return {}, []
    except (OSError, msgspec.MsgspecError) as error:
        aside = path.with_name(f"{DIAGNOSES}.damaged")
        what = f"{DIAGNOSES}: causes that were found before cannot be read ({error})"
        try:
            path.replace(aside)
        except OSError as why:
            return {}, [f"{what}, nor can it be set aside: {why.strerror}"]
        return {}, [f"{what}; it was set aside as {aside.name}: run explain again"]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other one keeps causes in this folder meanwhile."""
    with (folder / f".{DIAGNOSES}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        yield


def _key(finding: Finding) -> str:
    """What stays the same when a record is analysed again."""
    where = sorted((name, at.repeat, at.rank, at.step, at.op_ids) for name, at in finding.where.operators.items())
    return f"{finding.kind} {finding.variant} {finding.ranks} {where}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_bytes(data)
    draft.replace(path)
