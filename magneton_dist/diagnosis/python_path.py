"""The condition in Python by which two variants come to other operators, seen by running both again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from magneton_dist.config import Job
from magneton_dist.diagnosis.branches import Branch, branch
from magneton_dist.diagnosis.operators import Diagnosis, Say
from magneton_dist.diagnosis.paths import watched
from magneton_dist.diagnosis.recorded import Recorded
from magneton_dist.diagnosis.rerun import CannotRerunError, lines_of
from magneton_dist.records.audit import Cause

LINES = "lines"


def with_python_path(
    found: Diagnosis, sides: tuple[Recorded, Recorded], ranks: tuple[int, int], jobs: Mapping[str, Job],
    cheap: str | None, left_s: float, say: Say,
) -> Diagnosis:  # fmt: skip
    """`found` with the condition where the sides part, if their operators come from other lines of Python.

    A cause that is proved stays; else the condition's is the cause, consistent with what was seen.

    Args:
        found: what is known already.
        sides: of the finding.
        ranks: whose lines are looked at.
        jobs: of the configuration, by variant; empty when there is none.
        cheap: the variant that needs less, for the fix; None when that is not known.
        left_s: time that this may take.
        say: is told what happens.
    """
    places = watched(*sides)
    if places is None:
        return found
    one, other = sides
    if one.name not in jobs or other.name not in jobs:
        line = f"{LINES}: not looked at: explain needs --config, the file of this audit, to run its variants again"
        return replace(found, lines=[*found.lines, line])
    frames = []
    try:
        for side, rank, place in zip(sides, ranks, places, strict=True):
            say(f"running {side.name} again to see its lines")
            frames.append(lines_of(side.name, jobs[side.name], rank, place, left_s / 2))
    except CannotRerunError as error:
        return replace(found, lines=[*found.lines, f"{LINES}: could not be looked at: {error}"])
    parted = branch(frames[0], frames[1])
    if parted is None:
        text = f"{LINES}: run again, both variants take the same lines of Python there"
        return replace(found, lines=[*found.lines, text])
    names = one.name, other.name
    lines = [*found.lines, *_in_words(parted, names)]
    if found.proof == "proved" or not parted.chain:
        return replace(found, lines=lines)
    last = parted.chain[-1]
    cause = Cause(
        "branch", last.text, dict(zip(names, last.values, strict=True)), agreed=["stacks", LINES],
    )  # fmt: skip
    fix = ""
    if cheap in names:
        hungry = names[1 - names.index(cheap)]
        fix = f"In {hungry}, have {last.text} be {last.values[names.index(cheap)]} at {last.place}, as in {cheap}"
        fix += f": {parted.origin}." if parted.origin else "."
    return replace(found, proof="consistent", cause=cause, fix=fix, lines=lines)


def _in_words(parted: Branch, names: tuple[str, str]) -> list[str]:
    a, b = names
    lines = [f"{LINES}: the variants part at {parted.place}: {parted.condition[:160]}"]
    lines += [f"{LINES}: {r.text} is {r.values[0]} in {a}, {r.values[1]} in {b}, at {r.place}" for r in parted.chain]
    return lines + ([f"{LINES}: {parted.chain[-1].text}: {parted.origin}"] if parted.origin and parted.chain else [])
