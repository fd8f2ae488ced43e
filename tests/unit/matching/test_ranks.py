from dataclasses import replace

import numpy as np
import pytest
from synthetic_graphs import Builder, transformer

from magneton_dist.matching.frontier import match
from magneton_dist.matching.graph import SHARD_A, SHARD_B
from magneton_dist.matching.ranks import Canonical, corresponding, held_alike, region_sums, split_otherwise

EPS = 1e-3


def test_as_many_ranks_correspond_by_number():
    pairs = corresponding(3, 3)
    assert [(p.a, p.b, p.share_a, p.share_b, p.others) for p in pairs] == [
        (rank, rank, 1.0, 1.0, ([], [])) for rank in range(3)
    ]


def test_neighbours_correspond_where_the_numbers_of_ranks_differ():
    pairs = corresponding(4, 2)
    assert [(p.a, p.b, p.share_a, p.share_b, p.others) for p in pairs] == [
        (0, 0, 1.0, 0.5, ([1], [])), (1, 0, 1.0, 0.5, ([0], [])),
        (2, 1, 1.0, 0.5, ([3], [])), (3, 1, 1.0, 0.5, ([2], [])),
    ]  # fmt: skip
    assert [p.number for p in pairs] == [0, 1, 2, 3]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 2), (2, 3), (6, 4), (7, 5), (1024, 1), (1024, 1023), (64, 16)])
def test_every_rank_corresponds_with_all_of_its_work_and_the_mirror_image_is_the_same(n: int, m: int):
    pairs = corresponding(n, m)
    assert len(pairs) == max(n, m)
    for side, ranks in (("a", n), ("b", m)):
        whole = np.zeros(ranks)
        for p in pairs:
            whole[getattr(p, side)] += getattr(p, f"share_{side}")
            assert getattr(p, side) in getattr(p, f"block_{side}")
        assert whole == pytest.approx(np.ones(ranks))
    assert [(p.b, p.a, p.share_b, p.share_a, p.block_b, p.block_a) for p in pairs] == [
        (p.a, p.b, p.share_a, p.share_b, p.block_a, p.block_b) for p in corresponding(m, n)
    ]


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


def tensor_parallel(side: str, rank: int, degree: int, reduce_scatter: bool = False) -> Builder:
    """Two blocks of a rank: a shard's product, and what all ranks have alike after the sum."""
    b = Builder(side)
    x = b.value("x")
    shard = f"{rank} of {degree}"
    for layer in range(2):
        normed = b.one("layer_norm", [x], f"normed {layer}")
        weight = b.parameter(f"{layer}", 4096 // degree)
        b.tags[weight] = b.contents[weight] = f"w{layer} {shard}"
        part = b.one("mm", [normed, b.view(weight, "t")], f"part {layer} {shard}", 4096)
        # as large as another of the other degree, by chance
        b.one("stats", [part], "by chance", 64)
        b.contents[-1] = f"by chance {shard}"
        if reduce_scatter:
            scattered = b.one("reduce_scatter_tensor", [part], f"scattered {layer} {shard}", 4096 // degree)
            part = b.view(scattered, "wait_tensor")
        x = b.one("all_reduce", [part], f"sum {layer}", 4096)
    return b


@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 4), (3, 2)])
@pytest.mark.parametrize("reduce_scatter", [False, True])
def test_another_degree_of_tensor_parallelism_is_compared_where_ranks_hold_the_same(n: int, m: int, reduce_scatter):
    a, b = ([tensor_parallel(side, rank, d, reduce_scatter) for rank in range(d)] for side, d in (("a", n), ("b", m)))
    one, two = (
        held_alike(of_rank[0].graph(), [other.graph() for other in of_rank[1:]], shard)
        for of_rank, shard in ((a, SHARD_A), (b, SHARD_B))
    )
    found = match(one, two, EPS)
    tags = {a[0].tags[v] for v in np.nonzero(found.value_a >= 0)[0]}
    assert tags == {"x", "normed 0", "sum 0", "normed 1", "sum 1"}
    names = [
        [name for name, r in zip(side.names, of_ops, strict=True) if r == region and name not in ("t", "wait_tensor")]
        for region in range(found.regions.matched)
        for side, of_ops in ((a[0], found.regions.a), (b[0], found.regions.b))
    ]
    block = ["mm", "reduce_scatter_tensor", "all_reduce"] if reduce_scatter else ["mm", "all_reduce"]
    assert names == [["layer_norm"]] * 2 + [block] * 2 + [["layer_norm"]] * 2 + [block] * 2


def test_what_is_left_of_parameters_in_other_parts_is_known_as_such():
    """b holds half of the parameter, gathers it for the product, and updates its half."""

    def rank(side: str, sharded: bool) -> Builder:
        b = Builder(side)
        size = 512 if sharded else 1024
        part = b.value("half of w" if sharded else "w", size, slot="w")
        other = b.parameter("other", 256)
        weight = b.one("all_gather_into_tensor", [part], "w", 1024) if sharded else part
        y = b.one("mm", [b.value("x"), weight], "y")
        grad = b.one("mm", [y, weight], "dw", 1024)
        grad = b.one("reduce_scatter_tensor", [grad], "half of dw", 512) if sharded else grad
        scaled = b.one("mul", [part, grad], numel=size)
        b.one("sqrt", [scaled], numel=size)
        b.one("debug", [other], numel=256)
        return b

    a, b = rank("a", False), rank("b", True)
    one, two = a.graph(), b.graph()
    found = match(one, two, EPS)
    split = split_otherwise(one, two, found)
    names = [
        [side.names[op] for op in np.nonzero(split[regions])[0]]
        for side, regions in ((a, found.regions.a), (b, found.regions.b))
    ]
    assert names == [["mul", "sqrt"], ["reduce_scatter_tensor", "mul", "sqrt"]]
    assert not split_otherwise(one, one, match(one, one, EPS)).any()


def test_agreement_needs_something_to_ask():
    b = Builder("a")
    b.one("relu", [b.value("x", 1)], "y", 1)
    graph = replace(b.graph(), anchor=np.zeros(2, bool))
    assert Canonical.of(match(graph, graph, EPS), graph, graph).agreement(graph, graph, EPS) == 1.0
