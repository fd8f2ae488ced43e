from __future__ import annotations

import polars as pl
import pytest

from magneton_dist.energy.operators import operator_class, operator_energy
from magneton_dist.meters import load_profile
from magneton_dist.records.schema import OPS, VALUES

PROFILE = load_profile("h200")
MB = 1 << 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.addmm.default", "matmul"),
        ("aten.mm.default", "matmul"),
        ("aten.bmm.default", "matmul"),
        ("aten.convolution_backward.default", "matmul"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "attention"),
        ("aten.native_layer_norm.default", "layer_norm"),
        ("aten.native_layer_norm_backward.default", "layer_norm"),
        ("aten.view.default", "layout"),
        ("aten.t.default", "layout"),
        ("aten.gelu.default", "memory_bound"),
        ("aten.copy_.default", "memory_bound"),
        ("aten.addcmul_.default", "memory_bound"),
        ("aten.comm_norm.default", "memory_bound"),
        ("c10d.allreduce_.default", "collective"),
        ("_c10d_functional.wait_tensor.default", "collective"),
    ],
)
def test_the_class_follows_the_name(name: str, kind: str) -> None:
    assert operator_class(name, MB) == kind


def test_a_small_copy_is_tiny() -> None:
    assert operator_class("aten.copy_.default", 100) == "tiny_copy"


def tables(*ops: tuple[str, int, float, list[int], list[int]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operators as (name, step, seconds, inputs, outputs); every value has 1 MB."""
    rows = [
        {"op_id": i, "step": step, "name": name, "phase": "forward", "inputs": a, "outputs": b, "arguments": "[]",
         "stack_id": 0, "start_ns": 0, "end_ns": int(seconds * 1e9)}
        for i, (name, step, seconds, a, b) in enumerate(ops)
    ]  # fmt: skip
    ids = sorted({v for row in rows for v in row["inputs"] + row["outputs"]})
    values = pl.DataFrame([{"value_id": v, "bytes": MB} for v in ids], schema=VALUES.schema)
    return pl.DataFrame(rows, schema=OPS.schema), values


def test_joules_are_shared_by_time_and_watts_and_add_up() -> None:
    ops, values = tables(
        ("aten.mm.default", 2, 2.0, [1, 2], [3]),  # 2 s at 650 W
        ("aten.gelu.default", 2, 1.0, [3], [4]),  # 1 s at 534 W
        ("aten.view.default", 2, 0.5, [4], [5]),  # 0.5 s, no kernel: 122 W
        ("c10d.allreduce_.default", 2, 9.0, [5], []),
    )
    energy = operator_energy(ops, values, 100.0, PROFILE)
    total = 2 * 650 + 534 + 0.5 * 122
    assert energy["joules"].to_list() == pytest.approx(
        [100 * 1300 / total, 100 * 534 / total, 100 * 61 / total, 0.0]
    )
    assert energy["joules"].sum() == pytest.approx(100.0)
    assert energy["bytes"].to_list() == [3 * MB, 2 * MB, 2 * MB, MB]
    assert energy["seconds"].to_list() == [2.0, 1.0, 0.5, None]


def test_every_traced_step_costs_the_same_compute() -> None:
    ops, values = tables(("aten.mm.default", 2, 1.0, [1], [2]), ("aten.mm.default", 3, 4.0, [2], [3]))
    assert operator_energy(ops, values, 7.0, PROFILE)["joules"].to_list() == pytest.approx([7.0, 7.0])


def test_unknown_compute_is_null_not_zero() -> None:
    ops, values = tables(("aten.mm.default", 2, 1.0, [1], [2]))
    assert operator_energy(ops, values, None, PROFILE)["joules"].to_list() == [None]


def test_no_operator_is_no_row() -> None:
    assert operator_energy(OPS.empty(), VALUES.empty(), 5.0, PROFILE).height == 0
