from __future__ import annotations

import polars as pl

from magneton_dist.energy.memory import StepMemory, step_memory
from magneton_dist.matching.recorded import step_graph
from magneton_dist.records.schema import FINGERPRINTS, OPS, VALUES


def memory(ops: list[tuple[list[int], list[int]]], values: dict[int, dict[str, object]]) -> StepMemory:
    """Of operators given by the values they read and make; a value is 4 float32 of its own storage by default."""
    rows = [
        {"op_id": i, "step": 0, "name": "aten.mul.Tensor", "phase": "forward", "inputs": read, "outputs": made,
         "arguments": "[]", "stack_id": None, "start_ns": 0, "end_ns": 1}
        for i, (read, made) in enumerate(ops)
    ]  # fmt: skip
    ids = sorted({v for read, made in ops for v in [*read, *made]})
    known = [
        {"value_id": v, "storage": v, "version": 0, "offset": 0, "shape": [4], "stride": [1], "dtype": "float32",
         "device": "cpu", "bytes": 16, "role": "activation", "slot": None} | values.get(v, {})
        for v in ids
    ]  # fmt: skip
    graph = step_graph(
        pl.DataFrame(rows, schema=OPS.schema), pl.DataFrame(known, schema=VALUES.schema), FINGERPRINTS.empty()
    )
    return step_memory(graph)


def test_an_activation_lives_from_its_operator_to_its_last_reader() -> None:
    # 0 -> 1 -> 2 -> 3: value 1 dies when 2 is made, 2 when 3 is; the given 0 stays
    result = memory([([0], [1]), ([1], [2]), ([2], [3])], {1: {"bytes": 160, "shape": [40]}})
    assert (result.peak_bytes, result.given_bytes) == (16 + 160 + 16, 16)
    assert result.made_bytes.tolist() == [160, 16, 0]


def test_views_are_of_the_same_memory() -> None:
    view = {"storage": 1, "shape": [2], "offset": 2, "bytes": 8}
    result = memory([([0], [1]), ([1], [5]), ([5], [6])], {5: view})
    assert (result.peak_bytes, result.made_bytes.tolist()) == (48, [16, 0, 16])


def test_a_broadcast_view_is_as_large_as_what_it_shows() -> None:
    wide = {"shape": [100, 4], "stride": [0, 1], "bytes": 1600}
    assert memory([([0], [1])], {0: wide}).given_bytes == 16


def test_gradients_and_states_stay_to_the_end() -> None:
    ops = [([0], [1]), ([0], [2]), ([2], [3])]
    assert memory(ops, {}).peak_bytes == 16 * 3
    kept = memory(ops, {1: {"role": "gradient"}})
    assert (kept.peak_bytes, kept.made_bytes.tolist()) == (16 * 4, [16, 16, 16])


def test_writing_in_place_makes_nothing_new() -> None:
    # value 7 is the given storage 0 after a write
    result = memory([([0], [7]), ([7], [8])], {7: {"storage": 0, "version": 1}})
    assert (result.given_bytes, result.made_bytes.tolist()) == (16, [0, 16])
    # overwritten without being read
    result = memory([([1], [7]), ([7], [8])], {7: {"storage": 0, "version": 1}})
    assert (result.given_bytes, result.made_bytes.tolist()) == (32, [0, 16])


def test_without_strides_values_are_dense() -> None:
    assert memory([([0], [1])], {0: {"stride": []}, 1: {"stride": []}}).peak_bytes == 32
