"""Why one variant's finished ranks wait in `Join` and another's do not: the condition, seen by running both again."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from magneton_dist.config import Job
from magneton_dist.detect.source_lines import user_frames
from magneton_dist.diagnosis.frames import Effects, Frame, Line
from magneton_dist.diagnosis.lines import Sources
from magneton_dist.diagnosis.operators import Diagnosis, Say
from magneton_dist.diagnosis.paths import Stack, place_of, watched_between
from magneton_dist.diagnosis.python_path import LINES, followed
from magneton_dist.diagnosis.recorded import Sides
from magneton_dist.diagnosis.rerun import Watched
from magneton_dist.records.audit import Audit, Finding
from magneton_dist.records.store import RankRecord

SHADOW = "shadow-collective"
JOIN = "/torch/distributed/algorithms/join.py"


def without_shadow(finding: Finding, audit: Audit) -> str | None:
    """The first variant of the audit of which no rank shadows its peers' collectives; None where all do."""
    shadowing = {finding.variant} | {other.variant for other in audit.findings if other.kind == SHADOW}
    return next((name for name, variant in audit.variants.items() if name not in shadowing and variant.runs), None)


def with_join_path(
    found: Diagnosis, finding: Finding, peer: str, sides: Sides, jobs: Mapping[str, Job], left_s: float, say: Say
) -> Diagnosis:
    """`found` with the condition by which the variant of `finding` comes to `Join`, and variant `peer` does not.

    Args:
        found: what the records say.
        finding: a `shadow-collective`.
        peer: a variant without one.
        sides: reads the records.
        jobs: of the configuration, by variant; empty when there is none.
        left_s: time that this may take.
        say: is told what happens.

    Raises:
        RecordError: `peer` left no records.
    """
    rank = finding.ranks[0]
    joining, stepping = finding.where.stack[::-1], _stepping(sides.rank(peer, rank))
    places = _watched(joining, stepping)
    if places is None:
        text = f"{LINES}: not looked at: the records do not show where {peer} steps in place of {finding.variant}"
        return replace(found, lines=[*found.lines, text])
    names, effects = (finding.variant, peer), _joining(joining[-1])
    looked_at = followed(found, names, (rank, rank), places, jobs, peer, left_s, say, effects)
    fix = f"{finding.fix} {looked_at.fix}" if looked_at.fix and looked_at.fix not in finding.fix else finding.fix
    return replace(looked_at, fix=fix)


def _stepping(record: RankRecord) -> Stack:
    """The user's frames, outermost first, at the first collective that a step issued; none where none shows them."""
    stacks = dict(record.stacks.iter_rows())
    in_steps = record.collectives.filter(pl.col("step") > 0).sort("call_id")
    for stack_id in in_steps["stack_id"].drop_nulls().unique(maintain_order=True):
        frames = user_frames([f"{f['file']}:{f['line']} {f['function']}" for f in stacks.get(stack_id, ())])
        if frames:
            return frames[::-1]
    return ()


def _watched(joining: Stack, stepping: Stack) -> tuple[Watched, Watched] | None:
    """What to watch of either side: the head of the `with` that both step in, or else where their stacks part."""
    for mine, theirs in zip(joining, stepping, strict=False):
        if mine != theirs:
            (file, line, function), (other_file, other_line, _) = place_of(mine), place_of(theirs)
            block = Sources().statement(file, line)
            inside = isinstance(block, ast.With) and block.lineno <= other_line <= (block.end_lineno or 0)
            if inside and file == other_file:
                return Watched(file, function, line), Watched(file, function, line)
            break
    return watched_between(joining, stepping)


def _joining(innermost: str) -> Effects:
    """What of a line counts: that `Join` is entered there, and what its own lines hold."""
    entered, line, _ = place_of(innermost)

    def effects(frame: Frame, at: Line) -> Sequence[object]:
        if frame.file.endswith(JOIN):
            return [at.line, *at.values.items()]
        return [JOIN] if (frame.file, at.line) == (entered, line) else []

    return effects
