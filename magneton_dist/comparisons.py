"""Two records side by side, made at any time: runs, the repeats of a variant, or audits of one variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from magneton_dist.audits import SETTINGS, Outcome, Settings, conclude_runs, reanalysed
from magneton_dist.config import Compare
from magneton_dist.detect.comparison import RunFacts
from magneton_dist.errors import RecordError
from magneton_dist.meters import Profile
from magneton_dist.records.store import MANIFEST, AuditRecord, RunRecord, load

APART = "the records were made apart: repeats pair in order, and a drift of the machine does not cancel"
By = Literal["energy", "time", "memory", "values"]


def compare_records(a: Path, b: Path, *, by: By | None = None, profile: Profile | None = None) -> Outcome:
    """Compare `b` with `a`, the baseline.

    Args:
        a, b: folders of a run, of a variant with its repeats, or of an audit of one variant.
        by: what decides; the other rules, and the default of this one, are those of a's audit.
        profile: replaces the watts that the runs were modelled with.

    Raises:
        RecordError: a folder holds no record, or an audit of several variants.
    """
    both = (_runs(a), _runs(b))
    count = min(len(runs) for runs in both)
    names = _names(both)
    settings = _settings(both[0][0])
    profile = profile or (settings.profile if settings else None)
    facts = {
        name: [_renamed(reanalysed(run, profile), name, repeat) for repeat, run in enumerate(runs[:count])]
        for name, runs in zip(names, both, strict=True)
    }
    same = len({runs[0].folder.resolve().parent.parent for runs in both}) == 1
    notes = [] if same else [APART]
    notes += [
        f"{name}: only the first {count} of {len(runs)} repeats have a counterpart"
        for name, runs in zip(names, both, strict=True)
        if len(runs) > count
    ]
    rules = settings.compare if settings else Compare()
    concluded = Settings(
        name=settings.name if same and settings else f"{names[1]} against {names[0]}",
        started=both[0][0].manifest.started,
        baseline=names[0],
        compare=rules if by is None else rules.model_copy(update={"by": by}),
        profile=profile,
    )
    records = {name: dict(enumerate(runs[:count])) for name, runs in zip(names, both, strict=True)}
    return conclude_runs(a, concluded, facts, records, notes=notes)


def repeats_in(folder: Path) -> list[RunRecord]:
    """The repeats in the folder of a variant, in order; none in any other folder."""
    repeats = [p for p in folder.glob("*") if p.name.isdecimal() and (p / MANIFEST).is_file()]
    return [RunRecord(p) for p in sorted(repeats, key=lambda p: int(p.name))]


def _runs(folder: Path) -> list[RunRecord]:
    """The runs in `folder`, in the order of repeats."""
    if repeats := repeats_in(folder):
        return repeats
    record = load(folder)
    if isinstance(record, AuditRecord):
        if len(record.runs) != 1:
            known = ", ".join(record.runs)
            do = "give the folder of one of them, or compare them with magneton-dist audit"
            raise RecordError(f"is an audit of several variants: {known}", where=str(folder), do=do)
        return list(next(iter(record.runs.values())).values())
    return [record]


def _names(both: tuple[list[RunRecord], list[RunRecord]]) -> tuple[str, str]:
    """What to call the two sides: by variant, then by repeat or by audit, then by folder."""
    firsts = [runs[0] for runs in both]
    manifests = [run.manifest for run in firsts]
    folders = [run.folder.resolve().parent.parent for run in firsts]
    repeats = [f"/{run.folder.name}" if len(runs) == 1 else "" for run, runs in zip(firsts, both, strict=True)]
    variants = [m.variant for m in manifests]
    runs = [m.variant + repeat for m, repeat in zip(manifests, repeats, strict=True)]
    in_audits = [f"{m.audit}/{m.variant}" for m in manifests]
    in_folders = [f"{folder.name}/{run}" for folder, run in zip(folders, runs, strict=True)]
    same = folders[0] == folders[1]
    for a, b in (variants, runs if same else in_audits, in_folders):
        if a != b:
            return a, b
    return f"{runs[0]} (a)", f"{runs[1]} (b)"


def _settings(run: RunRecord) -> Settings | None:
    """Those of the audit that `run` belongs to, if they are there."""
    folder = run.folder.parent.parent
    return Settings.read(folder) if (folder / SETTINGS).is_file() else None


def _renamed(facts: RunFacts, variant: str, repeat: int) -> RunFacts:
    return replace(facts, manifest=msgspec.structs.replace(facts.manifest, variant=variant, repeat=repeat))
