from dataclasses import replace

import numpy as np
from synthetic_graphs import Builder

from magneton_dist.matching.graph import INTEGER, UNKNOWN
from magneton_dist.matching.groups import group_values


def test_views_and_copies_join_their_source():
    b = Builder("a")
    x = b.value("x")
    seen = b.view(b.view(x, "transpose"), "clone")
    y = b.one("relu", [seen], "y")
    groups = group_values(b.graph())
    assert groups.of_value[x] == groups.of_value[seen] != groups.of_value[y]
    assert groups.identity.tolist() == [True, True, False]


def test_an_operator_that_changes_nothing_is_an_identity_whatever_its_name():
    b = Builder("a")
    x = b.value("x")
    b.view(x, "dropout")  # p = 0
    assert group_values(b.graph()).identity.all()


def test_a_tolerance_does_not_join():
    b = Builder("a")
    weight, gradient = b.value("w"), b.value("g")
    new = b.one("add_", [weight, gradient], "w", None)  # the same features, other bits
    b.contents[new] = "new w"
    groups = group_values(b.graph())
    assert groups.of_value[weight] != groups.of_value[new]
    assert not groups.identity.any()


def test_constants_join_through_layout_only():
    for name, joined in (("view", True), ("mul", False)):
        b = Builder("a")
        zeros = b.value("zeros")
        out = b.view(zeros, name)
        graph = replace(b.graph(), anchor=np.zeros(2, bool))
        groups = group_values(graph)
        assert (groups.of_value[zeros] == groups.of_value[out]) is np.bool_(joined)


def test_other_sizes_or_kinds_of_numbers_do_not_join():
    b = Builder("a")
    x = b.value("x")
    b.view(x)
    for change in ({"numel": np.array([4096, 64])}, {"kind": np.array([INTEGER, 1])}):
        assert not group_values(replace(b.graph(), **change)).identity.any()


def test_values_without_fingerprint_join_nothing():
    b = Builder("a")
    b.view(b.value("x"))
    graph = replace(b.graph(), kind=np.full(2, UNKNOWN), checksum=np.zeros(2, np.int64))
    assert len(group_values(graph).members) == 2


def test_equal_contents_of_different_origin_stay_apart():
    b = Builder("a")
    x, y = b.value("x"), b.value("y")
    one, two = b.one("relu", [x], "same"), b.one("gelu", [y], "same")
    of_value = group_values(b.graph()).of_value
    assert of_value[one] != of_value[two]
