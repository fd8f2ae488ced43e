"""What a region is called: by what it computes, and by the line of source that both variants share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from magneton_dist.detect.regions.places import Group
from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.energy.summary import TracedStep

_IDLE = ("layout", "collective")  # classes that say least about what a region computes
MOST = 0.8  # of a region's work: the copy behind it may be on another line
_NOISE = re.compile(r"^(_+|native_|_?foreach_|_?fused_|scaled_dot_product_)+|_for_cpu|_+$|_(default|out)$")


class GroupSide:
    """One side of a group: the operators of the region that is shown."""

    def __init__(self, group: Group, side: int) -> None:
        pair = group.pair
        self.record: StepRecord = pair.b if side else pair.a
        self.cost: TracedStep = pair.samples[0].b if side else pair.samples[0].a
        self.ops: list[int] = pair.members[side][group.region]

    @property
    def names(self) -> list[str]:
        """Names of the operators, without namespace and overload."""
        names = self.record.step.graph.names
        return [names[op] for op in self.ops]

    @property
    def computing(self) -> list[int]:
        """Operators other than collectives, whose time belongs to states of their own."""
        return [op for op in self.ops if self.record.classes[op] != "collective"]

    @property
    def stacks(self) -> dict[tuple[str, ...], float]:
        """Stacks of the operators that compute, innermost frame first, and the bytes moved there (at least 1)."""
        found: dict[tuple[str, ...], float] = {}
        for op in self.telling:
            if stack := self.record.op_stacks[op]:
                found[stack] = found.get(stack, 0.0) + max(1.0, float(self.record.moved_bytes[op]))
        return found

    @property
    def phases(self) -> list[str]:
        """Phases of the operators, in order of execution."""
        phase = self.record.ops["phase"]
        return list(dict.fromkeys(phase[op] for op in self.ops))

    @property
    def telling(self) -> list[int]:
        """Operators that compute, or all where none does."""
        return [op for op in self.ops if self.record.classes[op] not in _IDLE] or self.ops


def shared_line(sides: Sequence[GroupSide]) -> str:
    """The innermost frame that most of the work of both sides has in common and both variants run, or nothing."""
    run = sides[0].record.frames & sides[1].record.frames
    return common_frame([side.stacks for side in sides if side.stacks], run)


def common_frame(sides: Sequence[Mapping[tuple[str, ...], float]], among: frozenset[str]) -> str:
    """The innermost frame of those `among` that `MOST` of the weight of every side has in common.

    Args:
        sides: weight by stack, innermost frame first; stacks are compared from outside inwards.
        among: frames to choose from.
    """
    common, totals = "", [sum(side.values()) for side in sides]
    rest = [{stack[::-1]: weight for stack, weight in side.items()} for side in sides]
    for depth in range(max((len(stack) for side in rest for stack in side), default=0)):
        frames = {stack[depth] for side in rest for stack in side if len(stack) > depth}
        kept = {f: [{k: w for k, w in side.items() if k[depth : depth + 1] == (f,)} for side in rest] for f in frames}
        share = {f: min(sum(k.values()) / t for k, t in zip(kept[f], totals, strict=True)) for f in frames}
        best = max(sorted(frames), key=share.__getitem__, default="")
        if not best or share[best] < MOST:
            break
        rest = kept[best]
        if best in among:
            common = best
    return common


def label(sides: Sequence[GroupSide]) -> str:
    """What the region computes: the costliest operator of the side that needs fewer to do it."""
    if {phase for side in sides for phase in side.phases} == {"optimizer"}:
        return "optimizer"
    side = min((s for s in sides if s.ops), key=lambda s: (len(s.telling), len(s.ops), s.names))
    op = max(side.telling, key=lambda i: (float(side.cost.seconds[i]), -i))
    if side.record.classes[op] == "attention":
        return "attention"
    name = side.record.step.graph.names[op]
    plain = name.replace("_backward", "")
    for _ in range(2):
        plain = _NOISE.sub("", plain)
    return plain.replace("_", " ").strip() or name
