"""Stretches of operators by hand: (name, inputs, outputs); storages and versions of the values."""

import json

import polars as pl
import pytest

from magneton_dist.records.annotations import fold
from magneton_dist.records.schema import TABLES

ENTER, LEAVE = "magneton_dist.enter.default", "magneton_dist.leave.default"


def mark(name: str, label: str, **tensors: int) -> tuple[str, list[int], list[int], str]:
    values = list(tensors.values())
    return name, values, [], json.dumps([label, [{"v": v} for v in values], list(tensors)])


def op(name: str, inputs: list[int], outputs: list[int]) -> tuple[str, list[int], list[int], str]:
    return name, inputs, outputs, "[]"


def tables(
    *operators: tuple[str, list[int], list[int], str],
    versions: dict[int, tuple[int, int]] | None = None,
    steps: list[int] | None = None,
    phases: list[str] | None = None,
) -> dict[str, pl.DataFrame]:
    """`versions`: value -> (storage, version), each value its own storage where it is not said."""
    n = len(operators)
    ids = sorted({v for _, inputs, outputs, _ in operators for v in inputs + outputs})
    known = {v: (1000 + v, 0) for v in ids} | (versions or {})
    empty = {name: table.empty() for name, table in TABLES.items()}
    columns = {
        "op_id": range(n),
        "step": steps or [0] * n,
        "name": [o[0] for o in operators],
        "phase": phases or ["forward"] * n,
        "inputs": [o[1] for o in operators],
        "outputs": [o[2] for o in operators],
        "arguments": [o[3] for o in operators],
        "stack_id": range(n),
        "start_ns": [10 * i for i in range(n)],
        "end_ns": [10 * i + 5 for i in range(n)],
    }
    values = {
        "value_id": ids,
        "storage": [known[v][0] for v in ids],
        "version": [known[v][1] for v in ids],
    }
    return empty | {
        "ops": pl.DataFrame(columns, schema=TABLES["ops"].schema),
        "values": pl.DataFrame(
            {name: values.get(name, [None] * len(ids)) for name in TABLES["values"].schema},
            schema=TABLES["values"].schema,
        ),
    }


def shape(folded: dict[str, pl.DataFrame]) -> list[tuple[str, list[int], list[int]]]:
    return folded["ops"].select("name", "inputs", "outputs").rows()


def test_nothing_is_touched_without_marks():
    given = tables(op("a", [1], [2]))
    assert fold(given) is given


def test_a_stretch_becomes_one_operator():
    given = tables(
        op("a", [1], [2]),
        mark(ENTER, "block", x=2),
        op("b", [2, 9], [3]),
        op("c", [3], [4]),
        mark(LEAVE, "block", y=4),
        op("d", [4], [5]),
        phases=["other", "other", "forward", "forward", "forward", "backward"],
    )
    folded = fold(given)
    assert shape(folded) == [("a", [1], [2]), ("annotated.block", [2, 9], [4]), ("d", [4], [5])]
    block = folded["ops"].row(1, named=True)
    assert json.loads(block["arguments"]) == [
        {"name": "x", "value": {"v": 2}},
        {"name": "y", "output": {"v": 4}},
    ]
    assert (block["op_id"], block["phase"], block["stack_id"]) == (1, "forward", 1)
    assert (block["start_ns"], block["end_ns"]) == (10, 45)  # from the first mark to the last
    assert folded["values"]["value_id"].to_list() == [1, 2, 4, 5, 9]  # 3 was the stretch's own affair


def test_what_is_read_later_is_an_output_too():
    given = tables(
        mark(ENTER, "f", x=1), op("a", [1], [2]), op("b", [2], [3]), mark(LEAVE, "f", y=3), op("c", [2], [4])
    )
    assert shape(fold(given))[0] == ("annotated.f", [1], [3, 2])


def test_what_is_written_into_a_storage_from_outside_is_an_output():
    # storage 7 holds value 1, is written twice inside (values 2 and 3), and seen through a view (value 4)
    given = tables(
        mark(ENTER, "f"),
        op("view", [1], [4]),
        op("add_", [1], [2]),
        op("add_", [2], [3]),
        op("own", [3], [5]),
        op("own_", [5], [6]),
        mark(LEAVE, "f"),
        versions={1: (7, 0), 4: (7, 0), 2: (7, 1), 3: (7, 2), 5: (8, 0), 6: (8, 1)},
    )
    assert shape(fold(given)) == [("annotated.f", [1], [3])]


def test_what_is_overwritten_without_being_read_is_an_output():
    given = tables(mark(ENTER, "f", x=1), op("copy_", [1], [2]), mark(LEAVE, "f"), versions={2: (7, 3)})
    assert shape(fold(given)) == [("annotated.f", [1], [2])]


def test_the_outermost_of_nested_stretches_counts():
    given = tables(
        mark(ENTER, "outer", x=1),
        mark(ENTER, "inner", x=1),
        op("a", [1], [2]),
        mark(LEAVE, "inner", y=2),
        op("b", [2], [3]),
        mark(LEAVE, "outer", y=3),
        mark(ENTER, "next", x=3),
        op("c", [3], [4]),
        mark(LEAVE, "next", y=4),
    )
    assert shape(fold(given)) == [("annotated.outer", [1], [3]), ("annotated.next", [3], [4])]


@pytest.mark.parametrize(
    ("operators", "steps"),
    [
        ([mark(ENTER, "f", x=1), op("a", [1], [2])], [0, 0]),
        ([op("a", [1], [2]), mark(LEAVE, "f", y=2)], [0, 0]),
        ([mark(ENTER, "f", x=1), op("a", [1], [2]), mark(LEAVE, "f", y=2)], [0, 0, 1]),
    ],
)
def test_half_a_stretch_leaves_its_operators(operators, steps):
    assert shape(fold(tables(*operators, steps=steps))) == [("a", [1], [2])]


def test_fingerprints_of_what_is_gone_are_gone():
    given = tables(mark(ENTER, "f", x=1), op("a", [1], [2]), op("b", [2], [3]), mark(LEAVE, "f", y=3))
    schema = TABLES["fingerprints"].schema
    rows = [{"values": [1]}, {"values": [2]}, {"values": [2, 3]}]
    given["fingerprints"] = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
    assert fold(given)["fingerprints"]["values"].to_list() == [[1], [3]]
