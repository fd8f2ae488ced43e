"""Operators of a traced step that could be left out, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from magneton_dist.detect.operators.flow import COPIES, Flow
from magneton_dist.detect.operators.numbering import Numbering, number_values, same_results
from magneton_dist.matching.arrays import Bools

Kind = Literal["redundant-op", "recomputed", "dead-op", "useless-copy"]
FLOOR_BYTES = 4096  # that an operator reads and writes; below it there is nothing to gain


@dataclass(frozen=True, eq=False)
class StepWaste:
    """What can be left out of a step.

    Attributes:
        flow: the step.
        numbering: which operators do what earlier ones did.
        masks: (operators,) by kind; no operator is in two.
    """

    flow: Flow
    numbering: Numbering
    masks: dict[Kind, Bools]


def step_waste(flow: Flow) -> StepWaste:
    """Find the waste of a step."""
    numbering = number_values(flow)
    counts = _worth_a_look(flow)
    dead = dead_operators(flow) & counts
    copies = useless_copies(flow) & counts & ~dead
    again = repeated_operators(flow, numbering) & counts & ~dead & ~copies
    phase = flow.record.ops["phase"].to_numpy()
    backward = phase == "backward"
    earlier = np.where(numbering.first >= 0, numbering.first, 0)
    # what a backward pass computes again is kept in no memory meanwhile: somebody chose that
    kept_short = flow.recomputing | (again & backward & ~backward[earlier])
    masks: dict[Kind, Bools] = {
        "dead-op": dead & ~flow.recomputing,
        "useless-copy": copies & ~flow.recomputing,
        "redundant-op": _with_their_gradients(flow, numbering, again & ~kept_short),
        "recomputed": kept_short & ~flow.is_view & ~flow.collective,
    }
    return StepWaste(flow, numbering, masks)


def _with_their_gradients(flow: Flow, numbering: Numbering, again: Bools) -> Bools:
    """`again`, of the backward pass only what belongs to an operator computed twice in the forward pass.

    Other gradients come twice by the rules of derivation: both terms of a sum have the same one.
    """
    backward = (flow.record.ops["phase"] == "backward").to_numpy()
    stack = flow.record.ops["stack_id"].fill_null(-1).to_numpy()
    forward = np.nonzero(again & ~backward)[0]
    twice = np.union1d(stack[forward], stack[numbering.first[forward]])
    return np.asarray(again & (~backward | np.isin(stack, twice)))


def _worth_a_look(flow: Flow) -> Bools:
    classes = np.array(flow.record.classes)
    costs = ~np.isin(classes, ("layout", "collective")) & (flow.record.moved_bytes >= FLOOR_BYTES)
    return np.asarray(costs & ~flow.is_view)


def repeated_operators(flow: Flow, numbering: Numbering) -> Bools:
    """(operators,) computed before on the same inputs, with the same result, which is still to be had.

    Not among them: what is random, writes in place, only copies, makes something out of nothing, or whose result
    one of both overwrites later or keeps as parameter, gradient or state.
    """
    found = np.zeros(flow.n_ops, bool)
    overwritten = flow.overwritten < flow.n_ops
    version = _versions(flow)
    for op in np.nonzero(numbering.first >= 0)[0].tolist():
        earlier = int(numbering.first[op])
        if flow.names[op] in COPIES and _same_dtype(flow, op):
            continue
        contents = [*flow.made[op], *flow.made[earlier]]
        if overwritten[contents].any() or flow.owned[contents].any() or version[contents].any():
            continue
        found[op] = len(flow.inputs[op]) > 0 and same_results(flow, op, earlier)
    return found & ~flow.collective & ~flow.random


def _versions(flow: Flow) -> Bools:
    """(contents,) not the first of its storage: written in place."""
    return np.concatenate([[False], flow.storage[1:] == flow.storage[:-1]]) if len(flow.storage) else np.zeros(0, bool)


def _same_dtype(flow: Flow, op: int) -> bool:
    one, other = flow.inputs[op], flow.outputs[op]
    return len(one) == 1 and len(other) > 0 and flow.layouts[one[0]][3:] == flow.layouts[other[0]][3:]


def dead_operators(flow: Flow) -> Bools:
    """(operators,) whose results nobody reads, or only operators whose results nobody reads.

    Only in a step that trains: elsewhere the last results are what the step is for. A result is read for sure
    when it goes to a parameter, a gradient, a buffer, into memory from outside the step, to a collective, to the
    host or to an operator that is none of torch's own, and when its memory is still held at the end.
    """
    phase = flow.record.ops["phase"].to_numpy()
    if not flow.complete or not np.isin(phase, ("backward", "optimizer")).any():
        return np.zeros(flow.n_ops, bool)
    needed = flow.escapes.copy()
    needed |= _read_by_the_host(flow)
    live = flow.effects.copy()
    for op in range(flow.n_ops - 1, -1, -1):
        if not live[op] and any(needed[content] for content in flow.made[op]):
            live[op] = True
        if live[op] and not (flow.is_view[op] and not flow.effects[op]):
            needed[flow.read[op]] = True
    dead = ~live & ~flow.is_view & ~flow.random
    return dead & ~_called_for_more(flow, live & ~flow.is_view)


def _called_for_more(flow: Flow, live: Bools) -> Bools:
    """(operators,) one call of the user's makes their results and live ones (an LSTM its last states)."""
    if not flow.n_ops:
        return live
    stack = flow.record.ops["stack_id"].fill_null(-1).to_numpy()
    call = np.concatenate([[0], np.cumsum(stack[1:] != stack[:-1])])
    return np.asarray(np.bincount(call, weights=live)[call] > 0)


def _read_by_the_host(flow: Flow) -> Bools:
    """(contents,) that Python may look at without an operator: numbers on a CPU, through `numpy` or `tolist`.

    Whole numbers and whatever is computed outside of the passes are; so is what was detached by hand.
    """
    values = flow.values
    cpu = (values["device"].fill_null("cpu") == "cpu").to_numpy()
    whole = values["dtype"].fill_null("int").str.contains(r"^(u?int|bool)").to_numpy()
    found = np.zeros(len(flow.storage), bool)
    found[flow.content[cpu & whole]] = True
    phase = flow.record.ops["phase"].to_list()
    stack = flow.record.ops["stack_id"].to_list()
    on_cpu = np.zeros(len(flow.storage), bool)
    on_cpu[flow.content[cpu]] = True
    made = np.nonzero((flow.maker >= 0) & on_cpu)[0]
    found[[c for c in made.tolist() if phase[flow.maker[c]] == "other"]] = True
    for op, name in enumerate(flow.names):
        if name != "detach":
            continue
        for content in flow.read[op]:
            maker = int(flow.maker[content])
            # autograd detaches what it saves, at once and within the same call
            if on_cpu[content] and not (maker == op - 1 and stack[op] == stack[maker]) and phase[op] != "backward":
                found[content] = True
    return found


def useless_copies(flow: Flow) -> Bools:
    """(operators,) copies with the dtype, device and layout of their source, of which neither is written later.

    Left out: copies of a part, by which the rest can be freed; copies still held at the end; those that a
    collective or an operator of unknown effects reads.
    """
    found = np.zeros(flow.n_ops, bool)
    if not flow.complete:
        return found
    size = flow.values["bytes"].fill_null(0).to_numpy()
    whole = np.zeros(len(flow.storage), np.int64)
    np.maximum.at(whole, flow.storage[flow.content], size)  # by storage code: there are fewer of them
    opaque = np.zeros(len(flow.storage), bool)
    for op in np.nonzero((flow.effects | flow.collective) & ~flow.is_view)[0].tolist():
        opaque[flow.read[op]] = True
    hosted = _read_by_the_host(flow)
    for op in np.nonzero(np.isin(flow.names, list(COPIES)))[0].tolist():
        reads, makes = flow.inputs[op].tolist(), flow.outputs[op].tolist()
        if len(reads) != 1 or len(flow.made[op]) != 1 or flow.layouts[reads[0]] != flow.layouts[makes[0]]:
            continue
        source, copy = int(flow.content[reads[0]]), flow.made[op][0]
        last = int(flow.last_read[copy])
        found[op] = (
            last >= 0
            and not (flow.escapes[copy] or opaque[copy] or hosted[copy])
            and flow.overwritten[copy] == flow.n_ops
            and int(flow.overwritten[source]) > last
            and size[reads[0]] == whole[flow.storage[source]]
            and bool(not flow.known[[reads[0], makes[0]]].all() or flow.checksum[reads[0]] == flow.checksum[makes[0]])
        )
    return found
