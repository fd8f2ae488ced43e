from dataclasses import replace

import numpy as np
import pytest
from synthetic_graphs import Builder, transformer

from magneton_dist.matching.frontier import match
from magneton_dist.matching.ranks import Canonical, class_pairs, gathered_only, region_sums, spread

EPS = 1e-3


def test_ranks_of_one_structure_on_both_sides_are_one_class():
    first, last = "stage 0", "stage 1"
    pairs = class_pairs({0: first, 1: first, 2: last, 3: last}, {0: first, 1: "other", 2: last, 3: last})
    assert [(p.structure_a, p.structure_b, p.ranks) for p in pairs] == [
        (first, first, ((0, 0),)), (first, "other", ((1, 1),)), (last, last, ((2, 2), (3, 3))),
    ]  # fmt: skip
    assert pairs[2].representative == (2, 2)
    assert pairs[2].samples() == ((3, 3),)
    assert pairs[0].samples() == ()


def test_other_correspondence_of_ranks():
    (only,) = class_pairs({0: "s", 1: "s"}, {0: "s", 8: "s"}, [(0, 0), (1, 8)])
    assert only.ranks == ((0, 0), (1, 8))


def test_samples_are_spread_over_the_class():
    (only,) = class_pairs(dict.fromkeys(range(1024), "s"), dict.fromkeys(range(1024), "s"))
    samples = [a for a, _ in only.samples()]
    assert len(samples) == 3
    assert samples[0] < 50
    assert samples[-1] > 950


def test_a_match_is_checked_on_another_rank():
    a, b = transformer("a", "plain", 2, training=True), transformer("b", "fused", 2, training=True)
    graph_a, graph_b = a.graph(1e-5, 1), b.graph(1e-5, 2)
    found = Canonical.of(match(graph_a, graph_b, EPS), graph_a, graph_b)
    assert found.agreement(a.graph(1e-5, 3), b.graph(1e-5, 4), EPS) == 1.0
    other = b.graph(1e-5, 4)
    half = np.arange(other.n_values) % 2 == 0
    other.features[half, 0] *= 1.5
    assert 0.3 < found.agreement(a.graph(1e-5, 3), other, EPS) < 0.7


def test_region_sums_add_up_what_each_rank_spent():
    region = np.array([1, 0, 1, 2])
    joules = np.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
    assert region_sums(region, 4, joules).tolist() == [[2.0, 4.0, 4.0, 0.0], [20.0, 40.0, 40.0, 0.0]]


def test_spread_over_ranks_and_the_rank_that_is_far():
    rng = np.random.default_rng(0)
    a = rng.normal(100.0, 1.0, size=(64, 3))
    b = a + rng.normal([0.0, 5.0, 0.0], 1.0, size=(64, 3))
    b[17, 2] += 50
    found = spread(a, b)
    assert found.total == pytest.approx((b - a).sum(axis=0))
    assert found.median == pytest.approx([0.0, 5.0, 0.0], abs=0.5)
    assert found.deviation == pytest.approx([1.0, 1.0, 1.0], abs=0.35)
    assert found.outliers == [(17, 2)]


def test_another_degree_of_tensor_parallelism_is_compared_where_shards_are_gathered():
    """Half as many heads on each rank: their values are others, the sums over ranks are not."""

    def rank(side: str, shard: str) -> Builder:
        b = Builder(side)
        x = b.value("x")
        for layer in range(2):
            part = b.one("mm", [x, b.value(f"w{layer} {shard}")], f"part {layer} {shard}")
            # a value of a shard that is by chance as large as another of the other degree
            b.one("stats", [part], "by chance")
            x = b.one("all_reduce", [part], f"sum {layer}")
        return b

    a, b = rank("a", "of 2"), rank("b", "of 4")
    found = match(gathered_only(a.graph(1e-5, 1)), gathered_only(b.graph(1e-5, 2)), EPS)
    matched = {a.tags[v] for v in np.nonzero(found.value_a >= 0)[0]}
    assert matched == {"sum 0", "sum 1"}
    assert found.regions.a.tolist()[:1] == found.regions.b.tolist()[:1]
    # two regions of a matrix product and its collective, and what was logged beside them
    reduced = [op for op, name in enumerate(a.names) if name == "all_reduce"]
    assert found.regions.a[reduced].tolist() == found.regions.b[reduced].tolist() == [0, 1]


def test_agreement_needs_something_to_ask():
    b = Builder("a")
    b.one("relu", [b.value("x", 1)], "y", 1)
    graph = replace(b.graph(), anchor=np.zeros(2, bool))
    assert Canonical.of(match(graph, graph, EPS), graph, graph).agreement(graph, graph, EPS) == 1.0
