from pathlib import Path

import networkx as nx

from magneton_dist.records.graph import operator_graph
from magneton_dist.records.schema import TABLES
from magneton_dist.records.store import load


def test_edges_run_from_producer_to_consumer(run: Path):
    graph = load(run).ranks[0].graph()
    assert isinstance(graph, nx.MultiDiGraph)
    # 3 goes from mm to detach and to the backward mm, past detach, which hands it on unchanged
    assert sorted(graph.edges(keys=True)) == [(0, 1, 3), (0, 2, 3), (2, 3, 4), (3, 4, 5)]
    assert graph.graph["sources"] == [1, 2]
    assert nx.is_directed_acyclic_graph(graph)


def test_nodes_and_edges_carry_what_the_tables_say(run: Path):
    graph = load(run).ranks[0].graph()
    assert graph.nodes[3]["name"] == "aten.add_.Tensor"
    assert graph.nodes[3]["phase"] == "optimizer"
    assert graph.nodes[3]["inputs"] == [2, 4]
    assert graph.edges[3, 4, 5] == {
        "storage": 2,
        "version": 1,
        "shape": [2, 2],
        "dtype": "float32",
        "device": "cpu",
        "bytes": 16,
        "role": "parameter",
        "slot": "w",
    }


def test_a_value_read_twice_by_one_operator_is_one_edge(run: Path):
    assert load(run).ranks[0].graph().number_of_edges(3, 4) == 1


def test_a_record_without_operators_gives_an_empty_graph():
    graph = operator_graph(TABLES["ops"].empty(), TABLES["values"].empty())
    assert len(graph) == 0
    assert graph.graph["sources"] == []
