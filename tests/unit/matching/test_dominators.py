import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_graphs import Builder, transformer

from magneton_dist.matching.dominators import cut_at_dominators, ends_of, spine
from magneton_dist.matching.frontier import match

EPS = 1e-3


@given(st.integers(2, 40), st.floats(0.02, 0.5), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_the_spine_is_the_dominators_of_the_sink(n, density, seed):
    """Against the dominator tree of networkx."""
    rng = np.random.default_rng(seed)
    u, v = np.nonzero(np.triu(rng.random((n, n)) < density, 1))
    first, last = rng.random(n) < 0.2, rng.random(n) < 0.2
    graph = nx.DiGraph(zip(u.tolist(), v.tolist(), strict=True))
    graph.add_edges_from([("source", node) for node in np.nonzero(first)[0].tolist()])
    graph.add_edges_from([(node, "sink") for node in np.nonzero(last)[0].tolist()])
    graph.add_nodes_from(["source", "sink"])
    expected: list[int] = []
    on_way: set[object] = set()
    if nx.has_path(graph, "source", "sink"):
        on_way = nx.descendants(graph, "source") & nx.ancestors(graph, "sink")
        above = nx.immediate_dominators(graph.subgraph({*on_way, "source", "sink"}), "source")
        node = above["sink"]
        while node != "source":
            expected.append(node)
            node = above[node]
    found, ways = spine(n, np.stack([u, v]), first, last)
    assert found.tolist() == sorted(expected)
    assert set(np.nonzero(ways)[0].tolist()) == on_way


def test_a_chain_is_cut_at_every_common_value():
    a, b = Builder("a"), Builder("b")
    for side in (a, b):
        x = side.value("x")
        for i in range(4):
            if side is a:
                x = side.one("half", [x])
            x = side.one("layer", [x, side.parameter(f"w{i}", 4096)], f"h{i}")
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS, cut_at_dominators)
    # the first half leads to the source: it is beside the path and goes with its reader
    assert found.regions.a.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.regions.b.tolist() == [0, 1, 2, 3]


def test_branches_between_two_cuts_are_cut_again():
    """What leads around a branch hides its inner values from a single sweep."""
    a, b = Builder("a"), Builder("b")
    for side in (a, b):
        x = side.one("embed", [side.value("ids"), side.parameter("e", 4096)], "x")
        inner = side.one("up", [x], "inner")
        deeper = side.one("down", [inner], "deeper")
        side.one("add", [x, deeper], "sum")
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS, cut_at_dominators)
    assert found.regions.a.tolist() == found.regions.b.tolist() == [0, 1, 2, 3]


def test_source_and_sink_of_a_forward_pass():
    """Positions and masks lead to many places; the path begins where data meet weights."""
    b = Builder("a")
    mask = b.one("tril", [b.one("arange", [b.value("tokens")])])
    x = b.one("embedding", [b.value("ids"), b.parameter("e", 4096)], "x")
    for i in range(2):
        x = b.one("attend", [x, mask, b.parameter(f"w{i}", 4096)], f"h{i}")
    b.one("log", [x], "logged")
    loss = b.one("loss", [x], "loss")
    graph = b.graph()
    assert ends_of(graph) == (2, b.outputs.index([loss]))


def test_a_training_step_is_cut_more_coarsely_than_by_the_frontier():
    a = transformer("a", "plain", 3, training=True).graph(1e-5, 1)
    b = transformer("b", "fused", 3, training=True).graph(1e-5, 2)
    coarse = match(a, b, EPS, cut_at_dominators).regions
    fine = match(a, b, EPS).regions
    assert len(np.intersect1d(coarse.a, coarse.b)) < len(np.intersect1d(fine.a, fine.b)) / 2


@pytest.mark.parametrize("layers", [2, 5])
def test_a_forward_pass_is_cut_at_least_at_both_sums_of_every_layer(layers):
    a = transformer("a", "plain", layers).graph(1e-5, 1)
    b = transformer("b", "fused", layers).graph(1e-5, 2)
    regions = match(a, b, EPS, cut_at_dominators).regions
    assert len(np.intersect1d(regions.a, regions.b)) >= 2 * layers
