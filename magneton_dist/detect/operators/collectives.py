"""`redundant-collective`: what was sent was there already.

Two ways: the result equals the input on every rank that was asked (a broadcast of equal buffers, an average of
equal values), or the same payload was sent before in the same step, with the same result. Payloads of zeros do
not count: a healthy job sends them for a branch without gradients. What FSDP gathers again for the backward
pass it had freed on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton_dist.detect.operators.findings import FLOOR_SHARE, MOST_FRAMES, Evidence, OfClass, rank_seconds
from magneton_dist.detect.operators.flow import Flow
from magneton_dist.detect.regions.records import Load
from magneton_dist.detect.runs import VariantRuns, state_sum
from magneton_dist.detect.source_lines import user_frames
from magneton_dist.energy.summary import RankSummary
from magneton_dist.matching.arrays import Bools
from magneton_dist.records.audit import EnergyKind, Finding, Place

LEAST_BYTES = 4096  # of a payload: flags, counts and losses agree by chance
_SENDING = (
    "allreduce", "all_reduce", "broadcast", "allgather", "all_gather", "reduce_scatter", "alltoall", "all_to_all",
)  # fmt: skip
_IN_PLACE = ("allreduce", "broadcast")


@dataclass(eq=False)
class RankSteps:
    """Loads traced steps of the ranks of a class, as few as possible.

    `most_ranks` besides the first one, and `most_steps` of each: what changed nothing here and now may do so on
    another rank or in the next step.
    """

    runs: VariantRuns
    load: Load
    most_ranks: int
    most_steps: int

    def witnesses(self, of_class: OfClass) -> list[int]:
        """Some other ranks of a class, spread over it."""
        others = of_class.ranks[1:]
        places = np.linspace(0, len(others) - 1, min(self.most_ranks, len(others))).astype(int)
        return [others[place] for place in places]

    def of_rank(self, of_class: OfClass, rank: int) -> list[Flow]:
        """The first traced steps of a rank that have the structure of its class."""
        traced = [t.step for t in self.runs.repeats[0][rank].traced if t.structure == of_class.structure]
        return [Flow.of(self.load(self.runs.name, 0, rank, step)) for step in traced[: self.most_steps]]


def redundant_collectives(runs: VariantRuns, classes: Sequence[OfClass], steps: RankSteps) -> list[Finding]:
    """One finding for each line of source that sends what is there already."""
    found: list[Finding] = []
    alone = len(classes) == 1  # else ranks with other operators take part, who are not asked
    for of_class in classes:
        flow = of_class.waste.flow
        payload = _payload_bytes(flow)
        sends = np.array([any(part in name for part in _SENDING) for name in flow.names], bool)
        candidates = sends & flow.collective & (payload >= LEAST_BYTES)
        if not candidates.any() or len(runs.repeats[0]) < 2:
            continue
        same = unchanged(flow) & candidates if alone else np.zeros(flow.n_ops, bool)
        twice = (of_class.waste.numbering.first >= 0) & candidates
        asked = steps.witnesses(of_class) if (same | twice).any() else []
        for rank in [of_class.ranks[0], *asked]:
            for other in steps.of_rank(of_class, rank) if same.any() else []:
                same &= unchanged(other)
        if not asked:
            same &= False  # a root's own broadcast never changes anything
        by_frame: dict[tuple[str, ...], list[int]] = {}
        for op in np.nonzero(same | twice)[0].tolist():
            by_frame.setdefault(flow.record.op_stacks[op], []).append(op)
        for ops in by_frame.values():
            finding = _finding(runs, of_class, ops, bool(same[ops].all()), payload, len(asked) + 1)
            found += [finding] if finding is not None else []
    return found


def unchanged(flow: Flow) -> Bools:
    """(operators,) collectives that left every payload as it was, bit by bit; zeros are not looked at."""
    found = np.zeros(flow.n_ops, bool)
    for op in np.nonzero(flow.collective)[0].tolist():
        if not any(part in flow.names[op] for part in _IN_PLACE):
            continue
        before = [v for v in flow.inputs[op].tolist() if flow.known[v]]
        after = [v for v in flow.outputs[op].tolist() if flow.maker[flow.content[v]] == op and flow.known[v]]
        made = len(flow.made[op])
        if made and len(after) >= made and len(before) == len(after):
            sums = [flow.checksum[v] for v in before], [flow.checksum[v] for v in after]
            found[op] = all(x == y for x, y in zip(*sums, strict=True))
    return found


def _payload_bytes(flow: Flow) -> np.ndarray:
    size = flow.values["bytes"].fill_null(0).to_numpy()
    total = np.zeros(flow.n_ops, np.int64)
    np.add.at(total, flow.inputs.rows, size[flow.inputs.flat])
    return total


def _finding(
    runs: VariantRuns, of_class: OfClass, ops: list[int], same: bool, payload: np.ndarray, asked: int
) -> Finding | None:
    record = of_class.waste.flow.record
    stack = record.op_stacks[ops[0]]
    name = record.step.graph.names[ops[0]]
    of_line = sum(s == stack and n == name for s, n in zip(record.op_stacks, record.step.graph.names, strict=True))
    part = len(ops) / max(1, of_line)
    seconds = float(np.mean([sum(_transfer(run[r], name, stack)[0] for r in of_class.ranks if r in run)
                             for run in runs.repeats])) * part  # fmt: skip
    joules = runs.over_repeats(lambda run: _joules(run, of_class, name, stack, part))
    share = runs.share_of_run(joules)
    weight = seconds / max(1e-12, rank_seconds(runs)) if share is None else share
    if weight < FLOOR_SHARE:
        return None
    at = f" at {stack[0].split(' ', 1)[0]}" if stack else ""
    sent = int(payload[ops].sum())
    again = _gathered_again(of_class, ops)
    why = "every rank has what it sends already" if same else "the same payload was sent before in the same step"
    evidence: Evidence = {
        "collectives_per_step": len(ops), "bytes_per_step": sent, "share_of_run": weight, "ranks_asked": asked,
    }  # fmt: skip
    kind: EnergyKind = "unmeasured" if joules is None else runs.energy_kind
    return Finding(
        kind="trade-off" if again else "redundant-collective",
        title=(
            f"{name}{at} gathers again in the backward pass what the forward pass had gathered and freed, which saves "
            "memory" if again else f"{name}{at} changes nothing: {why}"
        ),
        variant=runs.name,
        joules=joules,
        energy_kind="apportioned" if kind == "measured" else kind,
        share=share,
        seconds=seconds,
        ranks=of_class.ranks,
        where=Place(steps=(record.step.step, record.step.step), what=name, stack=list(stack)[:MOST_FRAMES]),
        evidence=evidence,
        fix=_fix(name, at, again),
        confidence=0.7,  # equal in the traced steps
    )


def _fix(name: str, at: str, again: bool) -> str:
    if again:
        return "Nothing, if the memory is needed. If not, keep the shards gathered (reshard_after_forward=False)."
    if "broadcast" in name:
        return (
            f"Broadcast{at} only what has changed. For the buffers of DistributedDataParallel: broadcast_buffers=False."
        )
    return f"Leave the {name}{at} out, or keep its first result."


def _gathered_again(of_class: OfClass, ops: list[int]) -> bool:
    phase, first = of_class.waste.flow.record.ops["phase"], of_class.waste.numbering.first
    return all(first[op] >= 0 and phase[op] == "backward" and phase[int(first[op])] != "backward" for op in ops)


def _transfer(summary: RankSummary, name: str, stack: tuple[str, ...]) -> tuple[float, float]:
    """Exposed transfer of the calls of that operator from these lines, s, and of all calls."""
    waits = summary.waits
    if not waits.height:
        return 0.0, 0.0
    mine = {i for i, frames in summary.stacks.items() if tuple(user_frames(frames) or frames)[:1] == stack[:1]}
    exposed = waits["exposed_transfer_s"].to_numpy()
    chosen = np.array(
        [op == name and stack_id in mine for op, stack_id in waits.select("op", "stack_id").iter_rows()], bool
    )
    return float(exposed[chosen].sum()), float(exposed.sum())


def _joules(
    run: dict[int, RankSummary], of_class: OfClass, name: str, stack: tuple[str, ...], part: float
) -> float | None:
    total = 0.0
    for rank in of_class.ranks:
        if rank not in run:
            continue
        seconds, joules = state_sum(run[rank], "working", ("transfer",))
        mine = _transfer(run[rank], name, stack)[0] * part
        if mine > 0 and (joules is None or seconds <= 0):
            return None
        total += mine * (joules or 0.0) / seconds if mine > 0 else 0.0
    return total
