"""Where two runs part, and probably why: for when nothing downstream of some operator matches any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from magneton_dist.matching.arrays import Bools, Ints
from magneton_dist.matching.fingerprints import moment_distance
from magneton_dist.matching.frontier import Match
from magneton_dist.matching.graph import FEATURES
from magneton_dist.matching.ranks import name_and_size
from magneton_dist.matching.recorded import StepGraph

LEAST_SHARE = 0.01  # of all elements that a computes: less is not worth a word
NEAR = 30  # times eps: so close, and it is the same value with larger rounding errors

RANDOM = frozenset(
    {
        "native_dropout", "dropout", "dropout_", "alpha_dropout", "feature_dropout", "_fused_dropout", "bernoulli",
        "bernoulli_", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal",
        "normal_", "uniform_", "exponential_", "multinomial", "random_", "rrelu_with_noise", "cauchy_",
        "log_normal_", "geometric_", "poisson",
    }
)  # fmt: skip
# Attention with dropout inside: place of the probability among the arguments.
DROPOUT_ARGUMENT = {
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_cudnn_attention": 5,
    "_scaled_dot_product_attention_math": 4,
    "scaled_dot_product_attention": 4,
}

Reason = Literal["parameters", "data", "random", "precision", "rounding", "computation"]


@dataclass(frozen=True)
class Divergence:
    """From an operator on, nothing that a computes is found in b."""

    op_a: int | None  # op_id of the first such operator; None where it is b that has one more
    op_b: int | None  # op_id of b's operator on the same inputs, if there is one
    reason: Reason
    share: float  # of all elements that the run computes: those that depend on it
    text: str


def divergences(a: StepGraph, b: StepGraph, matched: Match, eps: float) -> list[Divergence]:
    """The places where a leaves b for good, largest first; none where less than LEAST_SHARE is lost.

    What comes from outside is looked at first: other weights, data or random numbers explain what follows.
    """
    sources = _other_parameters(a, b, matched), _other_data(a, b, matched), _other_draws(a, b, matched)
    found = [divergence for divergence in sources if divergence and divergence.share >= LEAST_SHARE]
    if not found:
        found = [_explain(a, b, matched, ops, eps, share) for ops, share in _lost(a, matched)]
    return sorted(found, key=lambda divergence: -divergence.share)


def _other_parameters(a: StepGraph, b: StepGraph, matched: Match) -> Divergence | None:
    given_a, given_b = _given(a, "parameter"), _given(b, "parameter")
    # of other sizes they are other parts of what may be the same parameters
    both = np.isin(name_and_size(a.graph), name_and_size(b.graph)[given_b & (b.graph.slot >= 0)])
    other = given_a & both & (matched.value_a < 0)
    if not other.any():
        return None
    op = int(a.graph.first_uses()[other].min())
    first = next(v for v in a.graph.inputs[op].tolist() if other[v])
    every = int((given_a & both).sum())
    why = (
        f"where {a.values['slot'][first]} is read: {int(other.sum())} of {every} parameters have other values "
        "before the step; give both runs the same seed or checkpoint"
    )
    return Divergence(_id(a, op), None, "parameters", _share(a, other), _place(a, op) + why)


def _other_data(a: StepGraph, b: StepGraph, matched: Match) -> Divergence | None:
    other_a, other_b = (
        _data(graph) & (of_value < 0) for graph, of_value in ((a, matched.value_a), (b, matched.value_b))
    )
    if not other_a.any() or not other_b.any():
        return None
    op = int(a.graph.first_uses()[other_a].min())
    first = next(v for v in a.graph.inputs[op].tolist() if other_a[v])
    shapes = [graph.values["shape"][int(v)].to_list() for graph, v in ((a, first), (b, np.argmax(other_b)))]
    how = "other data" if shapes[0] == shapes[1] else f"data of other sizes ({shapes[0]}, {shapes[1]})"
    return Divergence(_id(a, op), None, "data", _share(a, other_a), f"{_place(a, op)}which reads {how}")


def _other_draws(a: StepGraph, b: StepGraph, matched: Match) -> Divergence | None:
    op, other = (_first_draw(side, of_value) for side, of_value in ((a, matched.value_a), (b, matched.value_b)))
    advice = "give both runs one seed, or switch it off"
    if op is not None:
        why = f"which draws random numbers{_draws(a, op)}: {advice}"
        return Divergence(_id(a, op), None, "random", _share(a, _results(a, op)), _place(a, op) + why)
    if other is not None:
        why = f"of the second run, which draws random numbers{_draws(b, other)}: {advice}"
        return Divergence(None, _id(b, other), "random", _share(b, _results(b, other)), _place(b, other) + why)
    return None


def _results(side: StepGraph, op: int) -> Bools:
    of_op = np.zeros(side.graph.n_values, bool)
    of_op[side.graph.outputs[op]] = True
    return of_op


def _first_draw(side: StepGraph, ids: Ints) -> int | None:
    for op in range(side.graph.n_ops):
        outputs = side.graph.outputs[op]
        if (side.graph.anchor[outputs] & (ids[outputs] < 0)).any() and _draws(side, op):
            return op
    return None


def _given(graph: StepGraph, role: str) -> Bools:
    """(values,) given to the step in a role, and saying enough to be compared."""
    in_role = (graph.values["role"] == role).fill_null(False).to_numpy()
    given: Bools = in_role & (graph.graph.producers() < 0) & graph.graph.anchor
    return given


def _data(graph: StepGraph) -> Bools:
    """(values,) data of the step; what is read after the forward pass only is a framework's own, such as buckets."""
    late = np.append(graph.ops["phase"].is_in(["backward", "optimizer"]).fill_null(False).to_numpy(), False)
    return np.asarray(_given(graph, "input") & ~late[np.minimum(graph.graph.first_uses(), graph.graph.n_ops)])


def _share(a: StepGraph, values: Bools) -> float:
    """Share of all elements computed by the operators that `values` lead to."""
    graph = a.graph
    reached = values.tolist()
    inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
    elements = every = 0
    for op in range(graph.n_ops):
        made = int(graph.numel[outputs[op]].sum())
        every += made
        if any(reached[v] for v in inputs[op]):
            elements += made
            for v in outputs[op]:
                reached[v] = True
    return elements / max(1, every)


def _id(side: StepGraph, op: int) -> int:
    return int(side.ops["op_id"][op])


def _place(side: StepGraph, op: int) -> str:
    return f"the runs part at {side.graph.names[op]} ({side.ops['phase'][op]}, operator {_id(side, op)}), "


def _lost(a: StepGraph, matched: Match) -> Iterator[tuple[Ints, float]]:
    """Operators of a that lead to nothing matched, by component, with their share of all elements."""
    graph, region = a.graph, matched.regions.a
    # New memory and constants are in no value's company, and are not missed.
    weights = np.where(graph.anchor, graph.numel, 0)[graph.outputs.flat]
    elements = np.bincount(graph.outputs.rows, weights=weights, minlength=graph.n_ops)
    every = max(1.0, float(elements.sum()))
    left = np.nonzero(~_leads_to_a_match(a, matched.value_a) & (region >= matched.regions.matched))[0]
    for component in np.unique(region[left]):
        ops = left[region[left] == component]
        share = float(elements[ops].sum()) / every
        if share >= LEAST_SHARE:
            yield ops, share


def _leads_to_a_match(a: StepGraph, ids: Ints) -> Bools:
    """(operators,) whether any result, or what is made of it, is matched."""
    graph = a.graph
    inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
    leads = (ids >= 0).tolist()
    found = np.zeros(graph.n_ops, bool)
    for op in range(graph.n_ops - 1, -1, -1):
        if any(leads[v] for v in outputs[op]):
            found[op] = True
            for v in inputs[op]:
                leads[v] = True
    return found


def _explain(a: StepGraph, b: StepGraph, matched: Match, ops: Ints, eps: float, share: float) -> Divergence:
    op = _first_with_known_inputs(a, matched, ops)
    other = _counterpart(a, b, matched, op)
    reason, why = _reason(a, b, op, other, eps)
    op_b = _id(b, other) if other is not None else None
    return Divergence(_id(a, op), op_b, reason, share, _place(a, op) + why)


def _first_with_known_inputs(a: StepGraph, matched: Match, ops: Ints) -> int:
    """The first operator that makes something of matched or given values; else the first.

    What says too little to be matched by itself (new memory, scalars) is looked through.
    """
    graph = a.graph
    known = (matched.value_a >= 0) | (graph.producers() < 0)
    for op in ops.tolist():
        outputs = graph.outputs[op]
        if known[graph.inputs[op]].all():
            if graph.anchor[outputs].any():
                return int(op)
            known[outputs] = True
    return int(ops[0])


def _counterpart(a: StepGraph, b: StepGraph, matched: Match, op: int) -> int | None:
    """b's first operator without a match that reads what `op` reads, or the parameter of its name."""
    inputs = a.graph.inputs[op]
    ids = {i for i in matched.value_a[inputs].tolist() if i >= 0}
    slots = {slot for slot in a.graph.slot[inputs].tolist() if slot >= 0}
    best, most = None, 0
    for candidate in np.nonzero(matched.regions.b >= matched.regions.matched)[0].tolist():
        read = b.graph.inputs[candidate]
        common = len(ids & set(matched.value_b[read].tolist())) + len(slots & set(b.graph.slot[read].tolist()))
        if common > most:
            best, most = candidate, common
    return best


def _reason(
    a: StepGraph, b: StepGraph, op: int, other: int | None, eps: float
) -> tuple[Reason, str]:
    if other is None:
        return "computation", "and the second run does nothing with the same inputs"
    name = b.graph.names[other]
    outputs, others = a.graph.outputs[op], b.graph.outputs[other]
    types = [sorted(set(side.values["dtype"][v.tolist()])) for side, v in ((a, outputs), (b, others))]
    if types[0] != types[1]:
        return "precision", f"in {', '.join(types[0])} against {', '.join(types[1])} by {name}"
    distance = _distance(a, b, outputs, others)
    if distance is not None and distance <= NEAR * eps:
        return "rounding", (
            f"whose result differs by {distance:.2g} from that of {name}, more than the tolerance of {eps:g}: "
            "lower precision somewhere, or an order of summation that is not fixed"
        )
    return "computation", f"which computes something else than {name} from the same inputs"


def _draws(graph: StepGraph, op: int) -> str:
    """Non-empty for an operator that draws random numbers; says with which probability of dropout."""
    name = graph.graph.names[op]
    if name in RANDOM:
        return f" ({name})"
    if name in DROPOUT_ARGUMENT:
        arguments = json.loads(graph.ops["arguments"][op] or "[]")
        place = DROPOUT_ARGUMENT[name]
        probability = arguments[place] if len(arguments) > place else 0
        if isinstance(probability, (int, float)) and probability > 0:
            return f" (dropout of {probability:g} inside)"
    return ""


def _distance(a: StepGraph, b: StepGraph, outputs: Ints, others: Ints) -> float | None:
    """The smallest distance between moments of results of one size."""
    distances = [
        float(moment_distance(a.graph.features[v, :FEATURES], b.graph.features[w, :FEATURES]))
        for v in outputs
        for w in others
        if a.graph.numel[v] == b.graph.numel[w] and a.graph.anchor[v] and b.graph.anchor[w]
    ]
    return min(distances, default=None)
