"""What must hold for any two graphs, on random ones that are rewritten without changing what they compute."""

from collections import defaultdict

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_graphs import Builder, Random, transformer

from magneton_dist.matching.dominators import cut_at_dominators
from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.ranks import region_sums
from magneton_dist.matching.regions import cut_regions

SEEDS = st.integers(0, 2**32 - 1)
CUTS = pytest.mark.parametrize("cut", [cut_regions, cut_at_dominators], ids=["frontier", "dominators"])
EPS = 1e-3


def rewritten(seed: int) -> tuple[MatchGraph, MatchGraph, dict[int, str], dict[int, str]]:
    """Two graphs of one computation, a tenth of its results equal to others by chance."""
    random = Random(seed, duplicates=0.1)
    (a, names_a), (b, names_b) = (random.build(side, random.some_rewrites(side)) for side in "ab")
    return a.graph(1e-5, 1), b.graph(1e-5, 2), names_a, names_b


def produced(graph: MatchGraph, region: np.ndarray, ids: np.ndarray) -> dict[int, set[int]]:
    """Region -> matched ids that its operators make of others."""
    out: dict[int, set[int]] = defaultdict(set)
    for op in range(graph.n_ops):
        read = set(ids[graph.inputs[op]].tolist())
        out[int(region[op])] |= set(ids[graph.outputs[op]].tolist()) - read - {-1}
    return out


@CUTS
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_every_operator_has_one_region(cut, seed):
    a, b, _, _ = rewritten(seed)
    regions = match(a, b, EPS, cut).regions
    used = np.concatenate([regions.a, regions.b])
    assert (len(regions.a), len(regions.b)) == (a.n_ops, b.n_ops)
    # numbered densely, without a region that nobody is in
    assert np.unique(used).tolist() == list(range(regions.count))


@CUTS
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_graph_matches_itself_operator_by_operator(cut, seed):
    a, _, _, _ = rewritten(seed)
    found = match(a, a, EPS, cut)
    assert np.array_equal(found.regions.a, found.regions.b)
    assert np.array_equal(found.value_a, found.value_b)
    assert found.dropped == 0
    assert (region_confidence(found, a, a) == 1).all()


@CUTS
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_exchanging_the_graphs_mirrors_the_match(cut, seed):
    a, b, _, _ = rewritten(seed)
    there, back = match(a, b, EPS, cut), match(b, a, EPS, cut)
    assert np.array_equal(there.value_a, back.value_b)
    assert np.array_equal(there.value_b, back.value_a)
    pairs_there = set(zip(there.regions.a.tolist(), back.regions.b.tolist(), strict=True))
    pairs_there |= set(zip(there.regions.b.tolist(), back.regions.a.tolist(), strict=True))
    # one to one: the same regions under other numbers
    assert len(pairs_there) == there.regions.count == back.regions.count
    assert np.allclose(region_confidence(there, a, b)[[x for x, _ in sorted(pairs_there)]],
                       region_confidence(back, b, a)[[y for _, y in sorted(pairs_there)]])  # fmt: skip


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_energy_is_conserved(seed):
    a, b, _, _ = rewritten(seed)
    regions = match(a, b, EPS).regions
    rng = np.random.default_rng(seed)
    for graph, region in ((a, regions.a), (b, regions.b)):
        joules = rng.gamma(2.0, 1.0, size=(3, graph.n_ops))
        assert np.allclose(region_sums(region, regions.count, joules).sum(axis=1), joules.sum(axis=1))


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_matched_values_do_not_cross(seed):
    a, b, _, _ = rewritten(seed)
    found = match(a, b, EPS)
    quotient = nx.DiGraph()
    for side, graph, ids in (("a", a, found.value_a), ("b", b, found.value_b)):

        def node(value: int, ids: np.ndarray = ids, side: str = side) -> object:
            return ("id", int(ids[value])) if ids[value] >= 0 else (side, "value", value)

        for op in range(graph.n_ops):
            read = {node(v) for v in graph.inputs[op].tolist()}
            quotient.add_edges_from((value, (side, op)) for value in read)
            quotient.add_edges_from(((side, op), node(v)) for v in graph.outputs[op].tolist() if node(v) not in read)
    assert nx.is_directed_acyclic_graph(quotient)


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_region_makes_the_same_values_on_both_sides(seed):
    a, b, _, _ = rewritten(seed)
    found = match(a, b, EPS)
    made_a = produced(a, found.regions.a, found.value_a)
    made_b = produced(b, found.regions.b, found.value_b)
    for region in range(found.regions.matched):
        assert made_a.get(region, set()) == made_b.get(region, set())


def test_pairs_are_of_the_same_abstract_value():
    right = wrong = 0
    for seed in range(150):
        a, b, names_a, names_b = rewritten(seed)
        found = match(a, b, EPS)
        abstract: list[dict[int, set[str]]] = []
        for ids, names in ((found.value_a, names_a), (found.value_b, names_b)):
            of_id: dict[int, set[str]] = defaultdict(set)
            for value, name in names.items():
                of_id[int(ids[value])].add(name)
            abstract.append(of_id)
        for i in range(found.ids):
            if abstract[0][i] & abstract[1][i]:
                right += 1
            else:
                wrong += 1
    assert right > 2000
    # values that are equal by chance can be mistaken for each other: their numbers are the same
    assert right / (right + wrong) > 0.99


@given(seed=SEEDS, kind=st.sampled_from(["split", "clone", "hide"]))
@settings(max_examples=60, deadline=None)
def test_a_rewrite_leaves_all_other_regions_alone(seed, kind):
    random = Random(seed)
    number = seed % len(random.operators)
    (plain, _), (other, _) = random.build("a"), random.build("b", {number: kind})
    a, b = plain.graph(1e-5, 1), other.graph(1e-5, 2)
    found = match(a, b, EPS)
    made = set(random.operators[number][1])
    touched = {number} | {i for i, (read, _) in enumerate(random.operators) if made & set(read)}
    if kind != "hide":
        # the operator still makes what it made, so whoever reads it is not concerned
        touched = {number}
    before, after = partition(match(a, a, EPS), touched), partition(found, touched)
    assert before == after


def partition(found: Match, without: set[int]) -> set[frozenset[int]]:
    """Regions of a as sets of operators, those with one of `without` left out."""
    regions: dict[int, set[int]] = defaultdict(set)
    for op, region in enumerate(found.regions.a.tolist()):
        regions[region].add(op)
    return {frozenset(ops) for ops in regions.values() if not ops & without}


@pytest.mark.parametrize("optimizer", ["loop", "fused"])
def test_styles_of_a_training_step_share_all_their_work(optimizer):
    plain = transformer("a", "plain", 3, training=True).graph(1e-5, 1)
    fused = transformer("b", "fused", 3, training=True, optimizer=optimizer).graph(1e-5, 2)
    found = match(plain, fused, EPS)
    weight = [graph.numel[graph.outputs.flat] for graph in (plain, fused)]
    for graph, region, other, of_value in (
        (plain, found.regions.a, found.regions.b, weight[0]),
        (fused, found.regions.b, found.regions.a, weight[1]),
    ):
        shared = np.isin(region, other)[graph.outputs.rows]
        views = np.array([name in ("t", "view") for name in graph.names])[graph.outputs.rows]
        assert of_value[shared | views].sum() / of_value.sum() > 0.97


def test_empty_graphs_match():
    empty, one = Builder("a").graph(), Builder("b")
    one.one("relu", [one.value("x")], "y")
    for a, b in ((empty, empty), (empty, one.graph()), (one.graph(), empty)):
        for cut in (cut_regions, cut_at_dominators):
            found = match(a, b, EPS, cut)
            assert (found.ids, found.regions.count) == (0, a.n_ops + b.n_ops)
