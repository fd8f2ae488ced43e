from __future__ import annotations

import pytest

from magneton_dist.cluster.placement import CPU, GPU, LOGICAL, Node, device_order, rank_resource
from magneton_dist.cluster.states import Shape
from magneton_dist.errors import InputError


def node(name: str, **resources: float) -> Node:
    return Node(f"id-{name}", name, resources)


def test_gpus_where_there_are_enough() -> None:
    nodes = [node("a", GPU=8, CPU=64), node("b", GPU=8, CPU=64)]
    assert rank_resource(nodes, Shape(2, 8)) == GPU


def test_a_gloo_job_with_more_ranks_than_gpus_runs_on_a_local_session() -> None:
    assert rank_resource([node("a", GPU=1, magneton_rank=4)], Shape(1, 4)) == LOGICAL


def test_cpus_on_a_cluster_without_gpus() -> None:
    assert rank_resource([node("a", CPU=4), node("b", CPU=2)], Shape(2, 2)) == CPU


def test_ranks_of_a_node_are_never_split() -> None:
    with pytest.raises(InputError, match=r"2 node\(s\).*4 rank\(s\).*a has 8 GPU.*b has 2 GPU") as caught:
        rank_resource([node("a", GPU=8), node("b", GPU=2)], Shape(2, 4))
    assert caught.value.exit_code == 2


def test_a_cluster_with_nothing_says_so() -> None:
    with pytest.raises(InputError, match="a has nothing"):
        rank_resource([node("a", memory=1e9)], Shape(1, 1))


def test_devices_are_sorted_by_number() -> None:
    assert sorted(["10", "9", "2"], key=device_order) == ["2", "9", "10"]
    assert sorted(["GPU-b", "1", "GPU-a"], key=device_order) == ["1", "GPU-a", "GPU-b"]
