"""Small graphs with known answers."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic_graphs import Builder, features_of

from magneton_dist.matching.frontier import Match, match, region_confidence
from magneton_dist.matching.graph import MatchGraph

EPS = 1e-3


def regions(found: Match, a: Builder, b: Builder) -> list[tuple[list[str], list[str]]]:
    """Operators of every region on both sides, by name."""
    out = []
    for region in range(found.regions.count):
        of_a = [name for name, r in zip(a.names, found.regions.a, strict=True) if r == region]
        of_b = [name for name, r in zip(b.names, found.regions.b, strict=True) if r == region]
        out.append((of_a, of_b))
    return out


def compare(a: Builder, b: Builder) -> list[tuple[list[str], list[str]]]:
    return regions(match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS), a, b)


def test_a_fused_operator_stands_against_its_pieces():
    a, b = Builder("a"), Builder("b")
    product = a.one("mm", [a.value("x"), a.value("w")])
    a.one("relu", [a.one("add", [product, a.value("bias")], "y")], "z")
    b.one("relu", [b.one("addmm", [b.value("bias"), b.value("x"), b.value("w")], "y")], "z")
    assert compare(a, b) == [(["mm", "add"], ["addmm"]), (["relu"], ["relu"])]


def test_what_works_towards_two_results_makes_one_region_of_them():
    a, b = Builder("a"), Builder("b")
    for side, halves in ((a, False), (b, True)):
        x = side.value("x")
        if halves:
            side.one("cos", [x], "c")
            side.one("sin", [x], "s")
        else:
            angle = side.one("scale", [x])
            side.one("cos", [angle], "c")
            side.one("sin", [angle], "s")
    assert compare(a, b) == [(["scale", "cos", "sin"], ["cos", "sin"])]


def test_an_extra_copy_is_in_the_region_of_what_it_copies():
    a, b = Builder("a"), Builder("b")
    a.one("gelu", [a.one("relu", [a.value("x")], "y")], "z")
    copied = b.view(b.one("relu", [b.value("x")], "y"), "clone")
    b.one("gelu", [copied], "z")
    assert compare(a, b) == [(["relu"], ["relu", "clone"]), (["gelu"], ["gelu"])]


def test_layers_of_equal_numbers_are_told_apart_by_what_is_around_them():
    a, b = Builder("a"), Builder("b")
    for side in (a, b):
        x = side.value("x")
        for layer in range(3):
            hidden = side.one("up", [x], "the same in every layer")
            x = side.one("down", [hidden, x], f"out{layer}")
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS)
    assert found.regions.a.tolist() == found.regions.b.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(found.value_a, found.value_b)


def test_a_parameter_after_a_small_step_is_not_the_one_before():
    """At small learning rates all three are within the tolerance; roles and names tell them apart."""
    a, b = Builder("a"), Builder("b")

    def step(side: Builder, fused: bool) -> None:
        weight, gradient = side.parameter("w", 4096), side.value("g")
        if fused:
            new = [side.one("_fused_sgd_", [weight, gradient], "w.w")]
        else:
            decayed = side.one("mul_", [weight], "w.w")
            new = [decayed, side.one("add_", [decayed, gradient], "w.w")]
        for number, value in enumerate(new):
            side.contents[value] = f"{side.side} after {number}"

    step(a, fused=False)
    step(b, fused=True)
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS)
    before, decayed, after = 0, 2, 3
    assert found.value_a[before] == found.value_b[0] >= 0
    assert found.value_a[after] == found.value_b[2] >= 0
    assert found.value_a[decayed] == -1
    assert regions(found, a, b) == [(["mul_", "add_"], ["_fused_sgd_"])]


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (8192, 2048, 2048)], ids=["equal", "grouped queries"])
def test_a_fused_weight_is_the_whole_of_its_parts(sizes):
    """Weights, their gradients and new weights, whatever the share of each part."""
    a, b = Builder("a"), Builder("b")
    x, xb = a.value("x"), b.value("x")
    parts = [a.value(f"w{i}", size) for i, size in enumerate(sizes)]
    for i, part in enumerate(parts):
        a.one("mm", [x, part], f"y{i}", 512)
    whole = b.value("whole", sum(sizes))
    b.op("mm", [xb, whole], [(f"y{i}", 512) for i in range(3)])
    a.phase = b.phase = "backward"
    gradients = [a.one("mm", [x, a.value(f"dy{i}", 512)], f"g{i}", size) for i, size in enumerate(sizes)]
    gradient = b.one("mm", [xb, *(b.value(f"dy{i}", 512) for i in range(3))], "g whole", sum(sizes))
    a.phase = b.phase = "optimizer"
    for i, (part, of_part) in enumerate(zip(parts, gradients, strict=True)):
        a.one("step", [part, of_part], f"new{i}")
    b.one("step", [whole, gradient], "new whole")

    graph_a, graph_b = a.graph(1e-5, 1), b.graph(1e-5, 2)
    for tag, of_parts in (("whole", "w"), ("g whole", "g"), ("new whole", "new")):
        of_whole = b.tags.index(tag)
        graph_b.features[of_whole] = put_together([f"{of_parts}{i}" for i in range(3)], sizes)
    found = match(graph_a, graph_b, EPS)
    for tag, of_parts in (("whole", "w"), ("g whole", "g"), ("new whole", "new")):
        ids = {int(found.value_a[a.tags.index(f"{of_parts}{i}")]) for i in range(3)}
        assert ids == {int(found.value_b[b.tags.index(tag)])}
        assert ids != {-1}
    assert regions(found, a, b)[1:] == [(["mm"] * 3, ["mm"]), (["step"] * 3, ["step"])]


def put_together(tags: list[str], sizes: tuple[int, ...]) -> np.ndarray:
    """Features of the concatenation of values, from their sums of powers."""
    features = np.array([features_of(tag, size) for tag, size in zip(tags, sizes, strict=True)])
    n = np.array(sizes)
    l2 = features[:, 0]
    l1 = features[:, 1] * l2 * np.sqrt(n)
    norm = np.sqrt((l2**2).sum())
    fourth = (((features[:, 2] * l2) ** 4).sum()) ** 0.25
    total = (features[:, 3] * l1).sum()
    return np.array([norm, l1.sum() / (norm * np.sqrt(n.sum())), fourth / norm, total / l1.sum(), 0.0])


def test_lists_are_matched_element_by_element():
    """Equal numbers in a list are told apart by the element of the other lists that they belong to."""
    a, b = Builder("a"), Builder("b")
    n = 4
    for side in (a, b):
        side.phase = "optimizer"
        weights = [side.value(f"w{i}") for i in range(n)]
        if side is a:
            for i, weight in enumerate(weights):
                side.one("add_", [side.one("mul", [weight], "all alike"), weight], f"new{i}")
        else:
            alike = side.op("_foreach_mul", weights, [("all alike", 4096)] * n)
            side.op("_foreach_add_", [*alike, *weights], [(f"new{i}", 4096) for i in range(n)])
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS)
    alike_a = [v for v, tag in enumerate(a.tags) if tag == "all alike"]
    alike_b = [v for v, tag in enumerate(b.tags) if tag == "all alike"]
    assert found.value_a[alike_a].tolist() == found.value_b[alike_b].tolist()
    assert set(found.value_a[alike_a]) != {-1}


def test_pairs_that_cross_are_dropped():
    """y before z on one side, z before y on the other: both cannot be equal work."""
    a, b = Builder("a"), Builder("b")
    a.one("g", [a.one("f", [a.value("x")], "y")], "z")
    b.one("f", [b.one("g", [b.value("x")], "z")], "y")
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS)
    assert found.dropped == 1
    assert found.ids == 2  # x and one of them


def test_a_shared_part_is_found_in_two_different_models():
    a, b = Builder("a"), Builder("b")
    for side, head in ((a, "classes"), (b, "boxes")):
        x = side.value("x")
        for layer in range(3):
            x = side.one("layer", [x, side.value(f"w{layer}")], f"h{layer}")
        side.one(head, [x, side.value(f"head {head}")], head)
    assert compare(a, b) == [
        (["layer"], ["layer"]), (["layer"], ["layer"]), (["layer"], ["layer"]), (["classes"], ["boxes"]),
    ]  # fmt: skip
    found = match(a.graph(1e-5, 1), b.graph(1e-5, 2), EPS)
    assert found.regions.matched == 3  # the heads read the same value, and that is all they have in common


def test_dead_work_stands_beside_the_same_dead_work():
    a, b = Builder("a"), Builder("b")
    for side in (a, b):
        y = side.one("relu", [side.value("x")], "y")
        side.one("norm", [y], None, 1)  # logging: nobody reads it
    assert compare(a, b) == [(["relu"], ["relu"]), (["norm"], ["norm"])]


def test_work_of_one_side_only_is_a_region_of_that_side():
    a, b = Builder("a"), Builder("b")
    for side in (a, b):
        side.one("relu", [side.value("x")], "y")
    a.one("other", [a.value("z")])
    assert compare(a, b) == [(["relu"], ["relu"]), (["other"], [])]


def test_a_scalar_is_matched_only_as_the_result_of_equal_values():
    def graph(side: str, hidden: str) -> MatchGraph:
        b = Builder(side)
        h = b.one("model", [b.value("x"), b.value(f"w of {side}" if hidden == "other" else "w")], hidden)
        b.one("loss", [h], "loss", 1)
        return b.graph(1e-5, int(side == "b"))

    same = match(graph("a", "h"), graph("b", "h"), EPS)
    assert same.value_a[-1] == same.value_b[-1] >= 0
    # two other models whose losses are close: that says nothing
    assert match(graph("a", "h of a"), graph("b", "h of b"), EPS).value_a[-1] == -1


def test_confidence_counts_what_a_region_reads_on_both_sides():
    a, b = Builder("a"), Builder("b")
    a.one("f", [a.value("x"), a.value("y")], "z")
    b.one("f", [b.value("x")], "z")
    graph_a, graph_b = a.graph(1e-5, 1), b.graph(1e-5, 2)
    found = match(graph_a, graph_b, EPS)
    # y is read on one side and found nowhere on the other
    assert region_confidence(found, graph_a, graph_b).tolist() == [0.5]
    assert region_confidence(match(graph_a, graph_a, EPS), graph_a, graph_a).tolist() == [1.0]


def test_without_fingerprints_nothing_is_matched():
    a = Builder("a")
    a.one("relu", [a.value("x")], "y")
    unknown = replace(a.graph(), kind=np.full(2, -1), anchor=np.zeros(2, bool))
    found = match(unknown, unknown, EPS)
    assert found.ids == 0
    # the operators are still listed side by side, by what they are called
    assert found.regions.a.tolist() == found.regions.b.tolist() == [0]


def test_a_weight_gathered_twice_is_not_taken_for_the_one_after_a_small_step():
    """a updates its weight by less than the tolerance; b gathers the old one for both passes and updates a shard."""
    a, b = Builder("a"), Builder("b")
    old = a.value("w")
    a.one("mm", [a.one("relu", [a.value("x")], "h"), old], "y")
    new = a.one("add_", [old, a.value("step", 8)], "new w")
    shard = b.value("shard of w", 2048)
    first = b.one("all_gather", [shard], "w", 4096)
    b.one("mm", [b.one("relu", [b.value("x")], "h"), first], "y")
    again = b.one("all_gather", [shard], "w", 4096)
    one, two = a.graph(), b.graph()
    one.features[new] = one.features[old] * (1 + 1e-5)
    found = match(one, two, EPS)
    assert found.value_a[new] == -1
    assert found.value_a[old] in (found.value_b[first], found.value_b[again])
    assert sorted(found.value_b[[first, again]])[0] == -1
