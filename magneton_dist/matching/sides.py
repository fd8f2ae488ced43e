"""The two graphs while they are being paired."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.groups import Groups

# How a pair was found: by a label or bits of its own, by name or order, by its surroundings, by similar ones.
UNIQUE, NAMED, SURROUNDED, SIMILAR = 3, 2, 1, 0

LEAF_PLACES = frozenset(range(1, 64, 2))  # of `Side.place`

Lane = tuple[list[int], list[int]]  # values read and values written


@dataclass(eq=False)
class Side:
    """One graph. A group's `id` is shared by both graphs, -1 while unmatched."""

    graph: MatchGraph
    groups: Groups
    ids: list[int] = field(init=False)
    leaf: list[bool] = field(init=False)  # the graph was given it
    dead_end: list[bool] = field(init=False)  # no operator with outputs reads it
    position: list[int] = field(init=False)  # operator that makes it, or first reads it
    slot: list[int] = field(init=False)
    anchor: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        graph, groups = self.graph, self.groups
        n = len(groups.members)
        producer, first = graph.producers(), graph.first_uses()
        has_outputs = np.diff(graph.outputs.start) > 0
        of_reader = graph.inputs.rows
        live = np.zeros(graph.n_values, bool)
        live[graph.inputs.flat[has_outputs[of_reader]]] = True

        def over_groups(value: np.ndarray, start: int | bool, ufunc: np.ufunc) -> np.ndarray:
            out = np.full(n, start)
            ufunc.at(out, groups.of_value, value)
            return out

        leaf = over_groups(producer < 0, False, np.logical_or)
        made = over_groups(np.where(producer < 0, graph.n_ops, producer), graph.n_ops, np.minimum)
        read = over_groups(first, graph.n_ops, np.minimum)
        self.leaf = leaf.tolist()
        self.dead_end = (~over_groups(live, False, np.logical_or)).tolist()
        self.position = np.where(leaf, read, made).tolist()
        self.slot = over_groups(graph.slot, -1, np.maximum).tolist()
        self.anchor = over_groups(graph.anchor, False, np.logical_or).tolist()
        self.ids = [-1] * n

    @property
    def id_of_value(self) -> Ints:
        """(values,) the matched id of every value, -1 where unmatched."""
        return np.array(self.ids, np.int64)[self.groups.of_value]

    @cached_property
    def first_member(self) -> Ints:
        """(groups,) one value of each group; all have the same kind, size and bits."""
        return np.array([values[0] for values in self.groups.members], np.int64)

    @cached_property
    def maker(self) -> list[str]:
        """Name of the operator that makes a group, or first reads it."""
        names = [*self.graph.names, ""]
        return [names[position] for position in self.position]

    @cached_property
    def place(self) -> Ints:
        """(groups,) a code of role in the graph and phase; a whole and its parts have the same."""
        phases = np.append(self.graph.phases, 0)  # the last for what nobody reads
        phase = phases[np.array(self.position, np.int64)]
        code: Ints = np.array(self.leaf, np.int64) + 2 * np.array(self.dead_end, np.int64) + 4 * phase
        return code

    @cached_property
    def lanes(self) -> list[Lane]:
        """What depends on what, in execution order; more than one lane for an operator on lists."""
        graph = self.graph
        inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
        return [lane for op in range(graph.n_ops) for lane in graph.lanes(op, inputs[op], outputs[op])]


@dataclass(eq=False)
class Pairing:
    """Pairs found so far; `confidence` of each id is UNIQUE, NAMED, SURROUNDED or SIMILAR."""

    a: Side
    b: Side
    confidence: list[int] = field(default_factory=list)
    bundles: list[int] = field(default_factory=list)  # ids of wholes and their parts

    def pair(self, x: int, y: int, confidence: int) -> None:
        """Give group x of a and group y of b one id."""
        self.a.ids[x] = self.b.ids[y] = len(self.confidence)
        self.confidence.append(confidence)

    def bundle(self, whole: Side, x: int, part: Side, ys: list[int], confidence: int) -> None:
        """Give group x of one side and groups ys of the other one id."""
        whole.ids[x] = len(self.confidence)
        for y in ys:
            part.ids[y] = len(self.confidence)
        self.bundles.append(len(self.confidence))
        self.confidence.append(confidence)
