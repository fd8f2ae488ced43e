"""Findings on operators that could be left out, summed over equal lines of source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from magneton_dist.detect.operators.flow import COPIES
from magneton_dist.detect.operators.waste import Kind, StepWaste
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import RankSummary, TracedStep
from magneton_dist.records.audit import EnergyKind, Finding, FindingKind, Interval, Place

Evidence = dict[str, float | int | str | Sequence[int | str]]

FLOOR_SHARE = 0.005  # of the variant's run: less is not worth a reader's time
MOST_NAMES = 6
MOST_FRAMES = 6


@dataclass(frozen=True, eq=False)
class OfClass:
    """Ranks with the same operators.

    Attributes:
        structure: hash of their traced step.
        ranks: in order; the first was looked at.
        waste: what was found there.
    """

    structure: str
    ranks: list[int]
    waste: StepWaste


@dataclass(frozen=True, eq=False)
class _Line:
    """Waste of one kind at one line: per class, its operators."""

    kind: Kind
    frame: str
    ops: list[tuple[OfClass, list[int]]]

    @property
    def shown(self) -> tuple[OfClass, list[int]]:
        """The class of most ranks."""
        return self.ops[0]


def findings_of(runs: VariantRuns, classes: Sequence[OfClass]) -> list[Finding]:
    """One finding for each kind and line of source that is worth a reader's time."""
    lines: dict[tuple[Kind, str], _Line] = {}
    for of_class in classes:
        stacks = _blamed(of_class.waste)
        for kind, mask in of_class.waste.masks.items():
            by_frame: dict[str, list[int]] = {}
            for op in np.nonzero(mask)[0].tolist():
                # checkpointing is one decision, wherever its operators are
                frame = "" if kind == "recomputed" else (stacks[op] or ("",))[0]
                by_frame.setdefault(frame, []).append(op)
            for frame, ops in by_frame.items():
                lines.setdefault((kind, frame), _Line(kind, frame, [])).ops.append((of_class, ops))
    found = (_finding(runs, line) for line in lines.values())
    return [finding for finding in found if finding is not None]


def _blamed(waste: StepWaste) -> list[tuple[str, ...]]:
    """(operators,) the stack of what could be left out: of an operator computed twice, the later forward one.

    The backward pass runs in reverse: there the one that comes second belongs to the first of the forward pass.
    """
    record, first = waste.flow.record, waste.numbering.first
    stacks = list(record.op_stacks)
    phase = record.ops["phase"].to_list()
    ops = np.nonzero(waste.masks["redundant-op"])[0].tolist()
    later = {stacks[op] for op in ops if phase[op] != "backward"}
    for op in ops:
        if phase[op] == "backward" and stacks[op] not in later and record.op_stacks[int(first[op])] in later:
            stacks[op] = record.op_stacks[int(first[op])]
    return stacks


def _finding(runs: VariantRuns, line: _Line) -> Finding | None:
    joules = runs.over_repeats(lambda run: _joules(run, line))
    seconds = runs.over_repeats(lambda run: _seconds(run, line))
    if seconds is None:
        return None
    share = runs.share_of_run(joules)
    of_time = seconds.mean / max(1e-12, rank_seconds(runs))
    weight = of_time if share is None else share
    if weight < FLOOR_SHARE:
        return None
    of_class, ops = line.shown
    record = of_class.waste.flow.record
    names = [record.step.graph.names[op] for op in ops]
    shown = max(ops, key=lambda op: int(record.moved_bytes[op]))
    stack = list(record.op_stacks[shown])[:MOST_FRAMES]
    phases = list(dict.fromkeys(str(p) for p in record.ops["phase"].gather(ops)))
    evidence: Evidence = {
        "operators_per_step": len(ops),
        "operators": list(dict.fromkeys(names))[:MOST_NAMES],
        "bytes_per_step": int(record.moved_bytes[ops].sum()),
        "share_of_run": weight,
        "seconds_per_step": seconds.mean / max(1, _steps(runs, line)),
    }
    evidence |= _first_place(line)
    title, fix, kind = _WORDS[line.kind](_called(names), line.frame, line)
    return Finding(
        kind=kind,
        title=title,
        variant=runs.name,
        joules=joules,
        energy_kind=shared_out(runs, joules),
        share=share,
        seconds=seconds.mean,
        ranks=sorted(rank for c, _ in line.ops for rank in c.ranks),
        where=Place(
            steps=(record.step.step, record.step.step),
            what=f"{' and '.join(phases)}: {_called(names)}",
            stack=stack,
        ),
        evidence=evidence,
        fix=fix,
        confidence=0.8 if line.kind == "dead-op" else 0.9,
    )


def rank_seconds(runs: VariantRuns) -> float:
    """Seconds of all ranks together, mean over the repeats."""
    return float(np.mean([sum(s.window_s for s in run.values()) for run in runs.repeats]))


def shared_out(runs: VariantRuns, joules: Interval | None) -> EnergyKind:
    """Provenance of an operator's joules: never measured, for they are shared out."""
    if joules is None:
        return "unmeasured"
    return "apportioned" if runs.energy_kind == "measured" else runs.energy_kind


def _over_ranks(
    run: dict[int, RankSummary], line: _Line, cost: Callable[[RankSummary, OfClass, list[int]], float | None]
) -> float | None:
    total, ranks = 0.0, 0
    for of_class, ops in line.ops:
        for rank in of_class.ranks:
            if rank not in run:
                continue
            of_rank = cost(run[rank], of_class, ops)
            if of_rank is None:
                return None
            total += of_rank
            ranks += 1
    return total if ranks else None


def _over_steps(
    summary: RankSummary, of_class: OfClass, cost: Callable[[TracedStep], float | None]
) -> float | None:
    """The traced steps of a rank stand for its others: those of another structure do not have these operators."""
    costs = [cost(t) for t in summary.traced if t.structure == of_class.structure]
    known = [c for c in costs if c is not None]
    if not known or len(known) < len(costs):
        return None
    return sum(known) / len(summary.traced) * summary.steps


def _joules(run: dict[int, RankSummary], line: _Line) -> float | None:
    """Joules over all steps of a run."""

    def of_rank(summary: RankSummary, of_class: OfClass, ops: list[int]) -> float | None:
        return _over_steps(summary, of_class, lambda t: None if t.joules is None else float(t.joules[ops].sum()))

    return _over_ranks(run, line, of_rank)


def _seconds(run: dict[int, RankSummary], line: _Line) -> float | None:
    def of_rank(summary: RankSummary, of_class: OfClass, ops: list[int]) -> float | None:
        return _over_steps(summary, of_class, lambda t: float(t.seconds[ops].sum()))

    return _over_ranks(run, line, of_rank)


def _steps(runs: VariantRuns, line: _Line) -> float:
    ranks = {rank for c, _ in line.ops for rank in c.ranks}
    return float(np.mean([sum(s.steps for r, s in run.items() if r in ranks) for run in runs.repeats]))


def _first_place(line: _Line) -> Evidence:
    """Where the same was computed before."""
    of_class, ops = line.shown
    if line.kind != "redundant-op":
        return {}
    stacks, phase = of_class.waste.flow.record.op_stacks, of_class.waste.flow.record.ops["phase"]
    earlier = of_class.waste.numbering.first[[op for op in ops if phase[op] != "backward"]].tolist()
    places = dict.fromkeys(stacks[op][0] for op in earlier if stacks[op])
    return {"computed_before_at": list(places)[:MOST_NAMES]} if places else {}


def _called(names: Sequence[str]) -> str:
    """``bmm twice, exp``: the most frequent ones."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    most = sorted(counts, key=lambda name: -counts[name])
    told = [name if counts[name] == 1 else f"{name} {counts[name]} times" for name in most[:3]]
    return ", ".join(told) + (" and more" if len(most) > 3 else "")


def _place(frame: str) -> str:
    return f" at {frame.split(' ', 1)[0]}" if frame else ""


def _redundant(names: str, frame: str, line: _Line) -> tuple[str, str, FindingKind]:
    before = _first_place(line).get("computed_before_at")
    first = str(before[0]).split(" ", 1)[0] if isinstance(before, list) and before else ""
    again = f"what {first} had computed in the same step" if first else "what the same step had computed already"
    if first and frame.startswith(first):
        again = "again and again on the same inputs"
    flow = line.shown[0].waste.flow
    if all(flow.names[op] in COPIES for op in line.shown[1]):  # of copies, only those to another dtype are here
        return (
            f"each step casts {again.replace('computed', 'cast')}: {names}",
            f"Cast it once per step and use the result in all places{_place(frame)}. torch.autocast keeps what it has "
            "cast of parameters until its region ends: one region around all uses casts them once.",
            "redundant-op",
        )
    return (
        f"each step computes {again}: {names}",
        f"Compute it once per step{' (at ' + first + ')' if first else ''} and pass the result on{_place(frame)}.",
        "redundant-op",
    )


def _dead(names: str, frame: str, line: _Line) -> tuple[str, str, FindingKind]:
    return (
        f"nobody reads what is computed{_place(frame)}: {names}",
        f"Leave it out{_place(frame)}, or compute it only in the steps that use it.",
        "dead-op",
    )


def _copy(names: str, frame: str, line: _Line) -> tuple[str, str, FindingKind]:
    return (
        f"a copy{_place(frame)} is read where its source could have been: {names}",
        f"Leave the copy out{_place(frame)}: neither it nor its source is changed afterwards, and both have the same "
        "layout, dtype and device.",
        "useless-copy",
    )


def _recomputed(names: str, frame: str, line: _Line) -> tuple[str, str, FindingKind]:
    return (
        f"the backward pass computes parts of the forward pass again, which saves memory: {names}",
        "Nothing, if the memory is needed. If the step leaves memory free, checkpoint fewer layers.",
        "trade-off",
    )


_WORDS: dict[Kind, Callable[[str, str, _Line], tuple[str, str, FindingKind]]] = {
    "redundant-op": _redundant,
    "dead-op": _dead,
    "useless-copy": _copy,
    "recomputed": _recomputed,
}
