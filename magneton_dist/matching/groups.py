"""Step 2 of the matcher: values that hold exactly the same numbers form one group (views, copies)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from magneton_dist.matching.arrays import Bools, Ints
from magneton_dist.matching.graph import LAYOUT_OPERATORS, UNKNOWN, MatchGraph


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of identical values of one graph."""

    of_value: Ints  # (values,) group of each value
    members: list[list[int]]  # values of each group
    identity: Bools  # (operators,) True when every output equals one of the inputs


def group_values(graph: MatchGraph) -> Groups:
    """Join an operator's output to its input when checksum, kind of numbers and size are exactly equal.

    Never within a tolerance: at small learning rates a parameter after the step is within eps of the one
    before. Values too common to identify (constants, zeros) join only through layout operators.
    """
    in_op, in_value = graph.inputs.rows, graph.inputs.flat
    out_op, out_value = graph.outputs.rows, graph.outputs.flat
    layout = np.fromiter((n in LAYOUT_OPERATORS for n in graph.names), bool, graph.n_ops)

    content = _contents(graph)
    span = int(content.max(initial=0)) + 1
    in_key = in_op * span + content[in_value]
    out_key = out_op * span + content[out_value]
    order = np.argsort(in_key, kind="stable")  # stable: the first equal input wins
    at = np.searchsorted(in_key[order], out_key)
    found = at < len(order)
    found[found] = in_key[order][at[found]] == out_key[found]
    found &= graph.anchor[out_value] | layout[out_op]
    source = in_value[order[at[found]]]
    target = out_value[found]

    edges = coo_array((np.ones(len(source), bool), (source, target)), shape=(graph.n_values,) * 2)
    count, of_value = connected_components(edges, directed=False)
    of_value = of_value.astype(np.int64)
    by_group = np.argsort(of_value, kind="stable")
    bounds = np.searchsorted(of_value[by_group], np.arange(count + 1)).tolist()
    flat = by_group.tolist()
    members = [flat[i:j] for i, j in pairwise(bounds)]

    # An operator is the identity where all of its outputs stay in groups it has read.
    in_group = np.unique(in_op * count + of_value[in_value])
    kept = np.isin(out_op * count + of_value[out_value], in_group)
    outputs = np.bincount(out_op, minlength=graph.n_ops)
    identity = (outputs > 0) & (np.bincount(out_op, weights=kept, minlength=graph.n_ops) == outputs)
    return Groups(of_value, members, identity)


def _contents(graph: MatchGraph) -> Ints:
    """(values,) one number per distinct (kind, numel, checksum), so that (operator, content) packs into a key."""
    order = np.lexsort((graph.checksum, graph.numel, graph.kind))
    changes = np.zeros(len(order), bool)
    for column in (graph.checksum, graph.numel, graph.kind):
        sorted_ = column[order]
        changes[1:] |= sorted_[1:] != sorted_[:-1]
    # what has no fingerprint equals nothing, not even the same
    changes |= graph.kind[order] == UNKNOWN
    content = np.empty(len(order), np.int64)
    content[order] = np.cumsum(changes)
    return content
