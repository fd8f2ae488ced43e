"""The operator graph of a rank, as networkx."""

from __future__ import annotations

import networkx as nx
import polars as pl

_EDGE = ["value_id", "storage", "version", "shape", "dtype", "device", "bytes", "role", "slot"]


def operator_graph(ops: pl.DataFrame, values: pl.DataFrame) -> nx.MultiDiGraph:
    """Operators as nodes, values as edges from their producer to each consumer.

    A node is an `op_id` with `name`, `phase`, `step`, `inputs`, `outputs`, `stack_id`, `start_ns` and
    `end_ns`. An edge has the `value_id` as key and that value's `storage`, `version`, `shape`, `dtype`,
    `device`, `bytes`, `role` and `slot`. The producer is the first operator to write the value, unless one has
    read it before: a detach that hands its input on unchanged produces nothing. ``graph.graph["sources"]``
    lists, in order of first use, the values without a producer: parameters, inputs, states of earlier steps.
    """
    graph = nx.MultiDiGraph()
    for op in ops.drop("arguments").iter_rows(named=True):
        graph.add_node(op["op_id"], **{name: value for name, value in op.items() if name != "op_id"})
    read = _uses(ops, "inputs").unique(maintain_order=True)
    uses = pl.concat([read.with_columns(writes=False), _uses(ops, "outputs").with_columns(writes=True)])
    first = uses.sort("op_id", "writes", maintain_order=True).unique("value_id", keep="first")
    producer = first.filter("writes").select("value_id", producer="op_id")
    edges = read.join(producer, on="value_id", how="left", maintain_order="left").join(
        values.select(_EDGE), on="value_id", how="left", maintain_order="left"
    )
    graph.graph["sources"] = (
        edges.filter(pl.col("producer").is_null())["value_id"].unique(maintain_order=True).to_list()
    )
    for edge in edges.drop_nulls("producer").iter_rows(named=True):
        attributes = {name: edge[name] for name in _EDGE if name != "value_id"}
        graph.add_edge(edge["producer"], edge["op_id"], key=edge["value_id"], **attributes)
    return graph


def _uses(ops: pl.DataFrame, column: str) -> pl.DataFrame:
    uses = ops.select("op_id", pl.col(column).alias("value_id"))
    return uses.explode("value_id", empty_as_null=True).drop_nulls()
