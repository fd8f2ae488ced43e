"""Several traced steps as one graph, so that only what is equal in every one of them is matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.graph import UNKNOWN, MatchGraph


def structure(graph: MatchGraph) -> str:
    """Hash of what a graph calls on which sizes, whatever the numbers.

    Equal for two ranks, or two steps, whose operators correspond one to one: names, phases, and values by order
    of first use with their number of elements and kind.
    """
    order, number = by_first_use(graph)
    text = blake2b(digest_size=16)
    text.update("\n".join(graph.names).encode())
    for part in (
        graph.phases,
        graph.inputs.start,
        number[graph.inputs.flat],
        graph.outputs.start,
        number[graph.outputs.flat],
        graph.numel[order],
        graph.kind[order],
    ):
        text.update(np.ascontiguousarray(part, np.int64).tobytes())
    return text.hexdigest()


def by_first_use(graph: MatchGraph) -> tuple[Ints, Ints]:
    """Values in order of first use (inputs before outputs of an operator), and each value's place in it."""
    flat = np.concatenate([graph.inputs.flat, graph.outputs.flat])
    time = np.concatenate([2 * graph.inputs.rows, 2 * graph.outputs.rows + 1])
    flat = flat[np.argsort(time, kind="stable")]
    used, first = np.unique(flat, return_index=True)
    unused = np.setdiff1d(np.arange(graph.n_values), used)
    order = np.concatenate([used[np.argsort(first)], unused])
    number = np.empty(graph.n_values, np.int64)
    number[order] = np.arange(graph.n_values)
    return order, number


def same_structure(graphs: Sequence[MatchGraph]) -> list[int]:
    """Places of the graphs whose structure is the most frequent one (the first of several)."""
    hashes = [structure(graph) for graph in graphs]
    most = max(hashes, key=hashes.count) if hashes else ""
    return [place for place, of_graph in enumerate(hashes) if of_graph == most]


def in_every_step(graphs: Sequence[MatchGraph]) -> MatchGraph:
    """Steps of one structure as one graph; its operators are those of the first.

    Values have the features of all steps side by side, so that two values share a label only where they agree
    in each step, and identical values must be identical in each.
    """
    first, *others = graphs
    if not others:
        return first
    order, _ = by_first_use(first)
    orders = [order, *(by_first_use(graph)[0] for graph in others)]

    def as_in_first(column: np.ndarray, its_order: Ints) -> np.ndarray:
        out = np.empty_like(column)
        out[order] = column[its_order]
        return out

    def columns(name: str) -> list[np.ndarray]:
        return [as_in_first(getattr(g, name), o) for g, o in zip(graphs, orders, strict=True)]

    checksum = columns("checksum")[0].astype(np.uint64)
    for of_step in columns("checksum")[1:]:
        checksum = checksum * np.uint64(0x9E3779B97F4A7C15) + of_step.astype(np.uint64)
    kinds = columns("kind")
    return replace(
        first,
        kind=np.where(np.all([kind == kinds[0] for kind in kinds], axis=0), kinds[0], UNKNOWN),
        features=np.concatenate(columns("features"), axis=1),
        checksum=checksum.view(np.int64),
        anchor=np.all(columns("anchor"), axis=0),
    )
