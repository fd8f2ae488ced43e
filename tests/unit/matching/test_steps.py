from dataclasses import replace

import numpy as np
from synthetic_graphs import Builder, Random, transformer

from magneton_dist.matching.frontier import match
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.steps import by_first_use, in_every_step, same_structure, structure

EPS = 1e-3


def renumbered(graph: MatchGraph, seed: int) -> MatchGraph:
    """The same graph with its values numbered otherwise."""
    order = np.random.default_rng(seed).permutation(graph.n_values)
    number = np.argsort(order)
    return replace(
        graph,
        inputs=replace(graph.inputs, flat=number[graph.inputs.flat]),
        outputs=replace(graph.outputs, flat=number[graph.outputs.flat]),
        **{name: getattr(graph, name)[order] for name in ("kind", "numel", "features", "checksum", "anchor", "slot")},
    )


def test_structure_does_not_see_numbers_nor_numbering():
    graph = transformer("a", "plain", 2, training=True)
    assert structure(graph.graph(1e-5, 1)) == structure(graph.graph(1e-2, 2))
    assert structure(graph.graph()) == structure(renumbered(graph.graph(), 3))


def test_structure_sees_names_phases_sizes_and_connections():
    def small(name: str = "relu", numel: int = 4096, phase: str = "forward", read: int = 0) -> str:
        b = Builder("a")
        b.phase = phase
        xs = [b.value("x", numel), b.value("y", numel)]
        z = b.one(name, xs, "z", numel)
        b.one("neg", [[*xs, z][read]], "n", numel)
        return structure(b.graph())

    variants = [
        small(), small("gelu"), small(numel=64), small(phase="backward"), small(read=1), small(read=2),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)


def test_order_of_first_use():
    b = Builder("a")
    late, early, unused = b.value("late"), b.value("early"), b.value("unused")
    made = b.one("f", [early], "y")
    b.one("g", [made, late], "z")
    order, number = by_first_use(b.graph())
    assert order.tolist() == [early, made, late, 4, unused]
    assert number[order].tolist() == [0, 1, 2, 3, 4]


def test_the_most_frequent_structure_is_kept():
    one, two = Random(1).build("a")[0].graph(), Random(2).build("a")[0].graph()
    assert same_structure([two, one, one]) == [1, 2]
    assert same_structure([one, two]) == [0]
    assert same_structure([]) == []


def step(side: str, chance: bool, number: int) -> MatchGraph:
    """Two chains; with `chance` the last value of one is as large as that of the other."""
    b = Builder(side)
    for chain in range(2):
        x = b.value(f"x{chain} in step {number}")
        y = b.one("f", [x], f"y{chain} in step {number}")
        own = "by chance" if chance and side == "b" and chain else f"z{chain}"
        b.one("g", [y], f"z0 in step {number}" if own == "by chance" else f"{own} in step {number}")
    return b.graph(1e-5, int(side == "b") + 10 * number)


def test_only_what_is_equal_in_every_step_is_matched():
    first = match(step("a", True, 1), step("b", True, 1), EPS)
    assert first.ids == 5  # the chance value of the second chain is taken for the first's, or crowds it
    steps_a = [step("a", False, 0), step("a", True, 1)]
    steps_b = [step("b", False, 0), step("b", True, 1)]
    found = match(in_every_step(steps_a), in_every_step(steps_b), EPS)
    # x0, y0, z0 and x1, y1 agree twice; the second chain's last value only in the first step
    assert found.ids == 5
    z0, z1 = 2, 5
    assert found.value_a[z0] == found.value_b[z0] >= 0
    assert found.value_a[z1] == found.value_b[z1] == -1


def test_steps_are_put_together_whatever_their_numbering():
    graphs = [transformer("a", "plain", 1, training=True).graph(1e-5, seed) for seed in (1, 2)]
    mixed = [graphs[0], renumbered(graphs[1], 5)]
    there, back = in_every_step(graphs), in_every_step(mixed)
    assert there.features.shape == (graphs[0].n_values, 10)
    assert np.array_equal(there.features, back.features)
    assert np.array_equal(there.checksum, back.checksum)


def test_identical_values_must_be_identical_in_every_step():
    def graph(bits: int) -> MatchGraph:
        b = Builder("a")
        x = b.value("x")
        b.one("relu", [x], "x")
        same = b.graph()
        return replace(same, checksum=np.array([7, bits]))

    together = in_every_step([graph(7), graph(8)])
    assert together.checksum[0] != together.checksum[1]
    equal = in_every_step([graph(7), graph(7)])
    assert equal.checksum[0] == equal.checksum[1]


def test_one_step_is_itself():
    graph = Random(4).build("a")[0].graph()
    assert in_every_step([graph]) is graph
