"""From tables to graphs, on tables written by hand."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.matching.graph import COMPLEX, FLOAT, INTEGER, UNKNOWN
from magneton_dist.matching.recorded import StepGraph, step_graph, tolerance
from magneton_dist.records.schema import TABLES


def table(name: str, rows: list[dict[str, Any]], defaults: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{**defaults, **row} for row in rows], schema=TABLES[name].schema)


def ops(*calls: tuple[str, list[int], list[int]], step: int = 3) -> pl.DataFrame:
    rows = [{"op_id": i, "name": n, "inputs": x, "outputs": y} for i, (n, x, y) in enumerate(calls)]
    return table("ops", rows, {"step": step, "phase": "forward", "arguments": "[]", "start_ns": 0, "end_ns": 0})


def value(number: int, shape: list[int], **others: Any) -> dict[str, Any]:
    return {"value_id": number, "storage": number, "shape": shape, "stride": [1] * len(shape), **others}


def values(*rows: dict[str, Any]) -> pl.DataFrame:
    defaults = {"version": 0, "offset": 0, "dtype": "float32", "device": "cpu", "bytes": 0, "role": "activation"}
    return table("values", list(rows), defaults)


def fingerprint(of: list[int], l2: float, exact: str = "01", elements: int = 64, **others: Any) -> dict[str, Any]:
    l1 = 0.8 * l2 * elements**0.5
    return {"values": of, "exact": exact, "elements": elements, "l1": l1, "l2": l2, "l4": l2 / 2, **others}


def fingerprints(*rows: dict[str, Any]) -> pl.DataFrame:
    lists = {name: [] for name, dtype in TABLES["fingerprints"].schema.items() if isinstance(dtype, pl.List)}
    return table("fingerprints", list(rows), {**lists, "sum": 0.0, "excluded": 0.0})


def graph_of(
    calls: list[tuple[str, list[int], list[int]]], known: dict[int, float], shape: tuple[int, ...] = (8, 8)
) -> StepGraph:
    """Every value of one shape, with the norms of `known`."""
    numbers = sorted({v for _, x, y in calls for v in (*x, *y)})
    prints = [fingerprint([v], l2, f"{v:016x}") for v, l2 in known.items()]
    return step_graph(ops(*calls), values(*(value(v, list(shape)) for v in numbers)), fingerprints(*prints))


def uses(found: StepGraph) -> list[tuple[str, list[int], list[int]]]:
    """Operators by name, with value ids."""
    ids = found.values["value_id"].to_list()
    return [
        (name, [ids[v] for v in found.graph.inputs[op]], [ids[v] for v in found.graph.outputs[op]])
        for op, name in enumerate(found.graph.names)
    ]


def test_operators_and_values_of_a_step():
    found = graph_of([("aten.mm.default", [10, 20], [30]), ("aten.relu.default", [30], [40])], {30: 1.0})
    assert uses(found) == [("mm", [10, 20], [30]), ("relu", [30], [40])]
    assert found.step == 3
    assert found.graph.producers().tolist() == [-1, -1, 0, 1]


def test_an_operator_that_returns_its_input_has_a_result_of_its_own():
    found = graph_of([("aten.mm.default", [1, 2], [3]), ("aten.detach.default", [3], [3])], {3: 1.0})
    assert uses(found) == [("mm", [1, 2], [3]), ("detach", [3], [3])]
    made, again = found.graph.outputs[0], found.graph.outputs[1]
    assert made.tolist() != again.tolist()
    assert found.graph.checksum[made] == found.graph.checksum[again]


def test_a_view_of_something_older_has_a_result_of_its_own():
    """t of t gives the first shape of the storage, which has a value already."""
    calls = [("aten.mm.default", [1, 2], [3]), ("aten.t.default", [3], [4]), ("aten.t.default", [4], [3])]
    found = graph_of(calls, {3: 1.0})
    assert uses(found)[2] == ("t", [4], [3])
    assert sorted(found.graph.outputs.flat.tolist()) == list(range(2, 5))


def test_a_value_that_two_operators_wrote_belongs_to_the_first():
    found = graph_of([("aten.f.default", [1], [2, 3]), ("aten.g.default", [1], [3, 4])], {})
    assert uses(found) == [("f", [1], [2, 3]), ("g", [1], [4])]


def test_a_value_read_before_it_is_written_was_given():
    found = graph_of([("aten.f.default", [2], [3]), ("aten.g.default", [1], [2])], {})
    assert found.graph.producers()[found.values["value_id"].to_list().index(2)] == -1


def test_an_input_of_which_only_the_shape_matters_is_none():
    calls = [
        ("aten.ones_like.default", [1], [2]),
        ("aten.nll_loss_backward.default", [2, 3, 4, 5], [6]),
        ("aten.new_zeros.default", [3], [7]),
    ]
    assert uses(graph_of(calls, {})) == [
        ("ones_like", [], [2]), ("nll_loss_backward", [2, 4, 5], [6]), ("new_zeros", [], [7]),
    ]  # fmt: skip


def test_features_come_from_the_fingerprint():
    found = graph_of([("aten.f.default", [1], [2])], {1: 4.0})
    assert found.graph.features[0].tolist() == pytest.approx([4.0, 0.8, 0.5, 0.0, 0.0])
    assert found.graph.checksum[0] == 1
    assert (found.graph.kind.tolist(), found.graph.anchor.tolist()) == ([FLOAT, UNKNOWN], [True, False])


def test_checksums_use_all_64_bits():
    found = step_graph(
        ops(("aten.f.default", [1], [2])),
        values(value(1, [8]), value(2, [8])),
        fingerprints(fingerprint([1], 1.0, "f" * 16), fingerprint([2], 1.0, "8" + "0" * 15)),
    )
    assert found.graph.checksum.view(np.uint64).tolist() == [2**64 - 1, 2**63]


def test_kinds_of_numbers_and_sizes():
    found = step_graph(
        ops(("aten.f.default", [1, 2, 3, 4, 5], [])),
        values(
            value(1, [2, 3], dtype="int64"), value(2, [6], dtype="bool"), value(3, [], dtype="bfloat16"),
            value(4, [3, 4], dtype="complex64"), value(5, [0, 4], dtype="uint8"),
        ),
        fingerprints(*(fingerprint([v], 1.0) for v in range(1, 6))),
    )  # fmt: skip
    assert found.graph.kind.tolist() == [INTEGER, INTEGER, FLOAT, COMPLEX, INTEGER]
    assert found.graph.numel.tolist() == [6, 6, 1, 12, 0]


def test_what_says_too_little_is_no_anchor():
    constant = fingerprint([3], 8.0, elements=64, sum=64.0)
    constant["l1"] = 64.0  # 64 ones
    found = step_graph(
        ops(("aten.f.default", [1, 2, 3, 4], [])),
        values(value(1, [4]), value(2, [8, 8]), value(3, [8, 8]), value(4, [8, 8])),
        fingerprints(fingerprint([1], 1.0), fingerprint([2], 0.0), constant, fingerprint([4], 1.0)),
    )
    tiny, zero, ones, ordinary = found.graph.anchor.tolist()
    assert (tiny, zero, ones, ordinary) == (False, False, False, True)


@pytest.mark.parametrize(
    ("name", "inputs", "result", "noise"),
    [
        ("aten.sum.dim_IntList", [10.0], 1e-4, True),  # the gradient of a key's bias
        ("aten.sum.dim_IntList", [10.0], 1.0, False),
        ("aten.mm.default", [10.0, 10.0], 1e-4, True),
        ("aten.mm.default", [10.0, 10.0], 1e-1, False),
        ("aten.mul.Tensor", [10.0, 1e-7], 1e-6, False),  # small because a factor is
        ("aten.empty_like.default", [10.0], 10.0, True),  # whatever was in that memory
    ],
)
def test_noise_is_no_anchor(name, inputs, result, noise):
    read = list(range(1, len(inputs) + 1))
    found = graph_of([(name, read, [9])], {**dict(zip(read, inputs, strict=True)), 9: result})
    assert found.graph.anchor[-1] == (not noise)


def test_the_same_slot_has_the_same_code_in_any_graph():
    def slots(*rows: dict[str, Any]) -> list[int]:
        numbers = [row["value_id"] for row in rows]
        return step_graph(ops(("aten.f.default", numbers, [])), values(*rows), fingerprints()).graph.slot.tolist()

    here = slots(value(1, [2], role="parameter", slot="a.weight"), value(2, [2], role="gradient", slot="a.weight"))
    there = slots(value(5, [2]), value(6, [2], role="parameter", slot="a.weight"))
    assert there == [-1, here[0]]
    assert here[0] != here[1]
    assert min(here) >= 0


def test_tolerance_by_the_narrowest_numbers_of_both_sides():
    def of(dtype: str, shape: list[int]) -> StepGraph:
        return step_graph(ops(("aten.f.default", [1], [])), values(value(1, shape, dtype=dtype)), fingerprints())

    full, half, eight, scalar = of("float32", [64]), of("bfloat16", [64]), of("float8_e4m3fn", [64]), of("float16", [])
    assert tolerance(full, full) == tolerance(full, scalar) == 1e-3
    assert tolerance(full, half) == tolerance(half, full) == tolerance(eight, full) == 1e-2


def test_one_of_several_steps():
    both = pl.concat([ops(("aten.f.default", [1], [2]), step=3), ops(("aten.g.default", [1], [2]), step=4)])
    given = values(value(1, [8]), value(2, [8]))
    assert step_graph(both, given, fingerprints()).graph.names == ["f"]
    assert step_graph(both, given, fingerprints(), 4).graph.names == ["g"]


def test_no_traced_step_is_an_error_that_says_what_to_do():
    with pytest.raises(RecordError, match="graph_steps"):
        step_graph(ops(), values(), fingerprints())
