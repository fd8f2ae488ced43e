"""Where causes are kept: beside the record, for `audit` to have them again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from magneton_dist.diagnosis.operators import Diagnosis
from magneton_dist.errors import RecordError
from magneton_dist.records.audit import Audit, Finding

DIAGNOSES = "diagnoses.json"
OF_OPERATORS = ("region", "trade-off")


def told(finding: Finding, diagnosis: Diagnosis) -> Finding:
    """`finding` with this diagnosis."""
    return msgspec.structs.replace(
        finding, cause=diagnosis.cause, proof=diagnosis.proof, fix=diagnosis.fix or finding.fix,
        diagnosis=diagnosis.lines,
    )  # fmt: skip


def keep(audit: Audit, folder: Path) -> None:
    """Keep the diagnoses of `audit`, and the findings that came of some, beside its record and those kept there.

    Raises:
        RecordError: what is kept there is damaged.
    """
    mine = {_key(f): f for f in audit.findings if f.diagnosis and f.kind in (*OF_OPERATORS, "knob")}
    kept = list((_kept(folder) | mine).values())  # another one may have kept some meanwhile
    write_whole(folder / DIAGNOSES, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")


def remembered(audit: Audit, folder: Path) -> Audit:
    """`audit` with the diagnoses that were kept in `folder`.

    Raises:
        RecordError: they are damaged.
    """
    kept = _kept(folder)
    findings = []
    for finding in audit.findings:
        known = kept.pop(_key(finding), None)
        if known is not None:
            finding = told(finding, Diagnosis(known.proof, known.cause, known.fix, known.diagnosis))
        findings.append(finding)
    findings += [finding for finding in kept.values() if finding.kind == "knob"]
    return msgspec.structs.replace(audit, findings=findings)


def _kept(folder: Path) -> dict[str, Finding]:
    path = folder / DIAGNOSES
    if not path.is_file():
        return {}
    try:
        return {_key(finding): finding for finding in msgspec.json.decode(path.read_bytes(), type=list[Finding])}
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), do="delete it and run explain again") from error


def _key(finding: Finding) -> str:
    """What stays the same when a record is analysed again."""
    where = sorted((name, at.repeat, at.rank, at.step, at.op_ids) for name, at in finding.where.operators.items())
    return f"{finding.kind} {finding.variant} {finding.ranks} {where}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_bytes(data)
    draft.replace(path)
