"""The condition in Python by which two variants come to other operators, seen by running both again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from magneton_dist.config import Job
from magneton_dist.diagnosis.branches import Branch, branch
from magneton_dist.diagnosis.frames import Effects, operators
from magneton_dist.diagnosis.operators import Diagnosis, Say
from magneton_dist.diagnosis.options import words
from magneton_dist.diagnosis.paths import watched
from magneton_dist.diagnosis.recorded import Recorded
from magneton_dist.diagnosis.rerun import CannotRerunError, Watched, lines_of
from magneton_dist.records.audit import Cause

LINES = "lines"
BRANCH = "branch"  # the layer of such a cause


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
    names = sides[0].name, sides[1].name
    return followed(found, names, ranks, places, jobs, cheap, left_s, say)


def followed(
    found: Diagnosis, names: tuple[str, str], ranks: tuple[int, int], places: tuple[Watched, Watched],
    jobs: Mapping[str, Job], cheap: str | None, left_s: float, say: Say, effects: Effects = operators,
) -> Diagnosis:  # fmt: skip
    """The same of two variants, for what is watched of each, and for what counts as `effects` of a line."""
    if any(name not in jobs for name in names):
        line = f"{LINES}: not looked at: explain needs --config, the file of this audit, to run its variants again"
        return replace(found, lines=[*found.lines, line])
    frames = []
    try:
        for name, rank, place in zip(names, ranks, places, strict=True):
            say(f"running {name} again to see its lines")
            frames.append(lines_of(name, jobs[name], rank, place, left_s / 2))
    except CannotRerunError as error:
        return replace(found, lines=[*found.lines, f"{LINES}: could not be looked at: {error}"])
    parted = branch(frames[0], frames[1], effects)
    if parted is None:
        text = f"{LINES}: run again, both variants take the same lines of Python there"
        return replace(found, lines=[*found.lines, text])
    lines = [*found.lines, *_in_words(parted, names)]
    if not parted.chain:
        return replace(found, lines=lines)
    last = parted.chain[-1]
    option = last.text.rpartition(".")[2]
    typed = {n: words(option, value, jobs[n].args) for n, value in zip(names, last.values, strict=True)}
    if any(typed.values()):
        said = ", ".join(f"{text or 'nothing'} in {name}" for name, text in typed.items())
        lines.append(f"{LINES}: {last.text}: set on the command line: {said}")
    if found.proof == "proved":
        return replace(found, lines=lines)
    cause = Cause(
        BRANCH, last.text, dict(zip(names, last.values, strict=True)), agreed=["stacks", LINES],
    )  # fmt: skip
    fix = ""
    if cheap in names:
        hungry, value = names[1 - names.index(cheap)], last.values[names.index(cheap)]
        if typed[cheap]:
            fix = f"In {hungry}, start the job with {typed[cheap]}, as {cheap} does: {last.text} at {last.place}"
        else:
            fix = f"In {hungry}, have {last.text} be {value} at {last.place}, as in {cheap}"
        fix += f": {parted.origin}." if parted.origin and not typed[cheap] else "."
    return replace(found, proof="consistent", cause=cause, fix=fix, lines=lines)


def _in_words(parted: Branch, names: tuple[str, str]) -> list[str]:
    a, b = names
    lines = [f"{LINES}: the variants part at {parted.place}: {parted.condition[:160]}"]
    lines += [f"{LINES}: {r.text} is {r.values[0]} in {a}, {r.values[1]} in {b}, at {r.place}" for r in parted.chain]
    return lines + ([f"{LINES}: {parted.chain[-1].text}: {parted.origin}"] if parted.origin and parted.chain else [])
