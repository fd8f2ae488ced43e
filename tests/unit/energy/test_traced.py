from __future__ import annotations

import json

import polars as pl
import pytest

from magneton_dist.energy.replay.results import REPLAYED
from magneton_dist.energy.replay.signature import signatures
from magneton_dist.energy.traced import replay_residual, traced_step_costs
from magneton_dist.meters import load_profile
from magneton_dist.records.schema import ACTIVITIES, FINGERPRINTS, MARKS, OPS, VALUES

PROFILE = load_profile("h200")
MATMUL, BOUND = PROFILE.operators["matmul"].nominal, PROFILE.operators["memory_bound"].nominal
MS = 1_000_000
SEVEN = {name: c.dtype for name, c in ACTIVITIES.columns.items() if not c.later}  # columns


def tables(*steps: list[tuple[str, int | None]]) -> dict[str, pl.DataFrame]:
    """Operators in a chain over values of 1 MB, each with its time in ms; None where it has none."""
    ops, values = [], []
    for step, of_step in enumerate(steps):
        for name, ms in of_step:
            i = len(ops)
            ops.append({
                "op_id": i, "step": step, "name": name, "phase": "forward", "inputs": [2 * i], "outputs": [2 * i + 1],
                "arguments": "[]", "stack_id": None, "start_ns": None if ms is None else 5 * MS,
                "end_ns": None if ms is None else (5 + ms) * MS,
            })  # fmt: skip
    for v in range(2 * len(ops)):
        values.append({
            "value_id": v, "storage": v, "version": 0, "offset": 0, "shape": [250_000], "stride": [1],
            "dtype": "float32", "device": "cpu", "bytes": 1_000_000, "role": "activation", "slot": None,
        })  # fmt: skip
    return {
        "ops": pl.DataFrame(ops, schema=OPS.schema), "values": pl.DataFrame(values, schema=VALUES.schema),
        "fingerprints": FINGERPRINTS.empty(), "activities": ACTIVITIES.empty(),
        "marks": MARKS.empty(),
    }  # fmt: skip


def window(start_ns: int, end_ns: int, ran: int) -> pl.DataFrame:
    """A captured window in which so many activities began."""
    detail = json.dumps({"start_ns": start_ns, "activities": ran})
    return pl.DataFrame([("kernels", end_ns, detail)], schema=MARKS.schema, orient="row")


def test_a_steps_joules_are_shared_by_time_and_watts() -> None:
    step = [("aten.mm.default", 3), ("aten.exp.default", 1), ("c10d.allreduce_.default", 9)]
    (cost,) = traced_step_costs(tables(step), 10.0, PROFILE)
    assert cost.joules is not None
    assert cost.joules.sum() == pytest.approx(10.0)
    assert cost.joules.tolist() == pytest.approx(
        [10 * 3 * MATMUL / (3 * MATMUL + BOUND), 10 * BOUND / (3 * MATMUL + BOUND), 0.0], rel=1e-6
    )
    assert cost.seconds.tolist() == pytest.approx([0.003, 0.001, 0.0])


def test_the_least_disturbed_step_tells_an_operators_time() -> None:
    mm, exp = "aten.mm.default", "aten.exp.default"
    one, two, other = traced_step_costs(tables([(mm, 3), (exp, 50)], [(mm, 70), (exp, 1)], [(exp, 4)]), 8.0, PROFILE)
    assert one.structure == two.structure != other.structure
    assert one.seconds.tolist() == two.seconds.tolist() == pytest.approx([0.003, 0.001])
    assert other.seconds.tolist() == pytest.approx([0.004])
    for cost in (one, two, other):
        assert cost.joules is not None
        assert cost.joules.sum() == pytest.approx(8.0)
    assert [cost.step for cost in (one, two, other)] == [0, 1, 2]


def test_where_kernels_were_captured_they_tell_an_operators_time() -> None:
    made = tables([("aten.mm.default", 3), ("aten.exp.default", 50), ("aten.view.default", 9)])
    rows = [
        ("GPU-0", 7, "kernel", "gemm", 0, 4 * MS, 0), ("GPU-0", 7, "kernel", "reduce", 5 * MS, 6 * MS, 0),
        ("GPU-0", 7, "kernel", "exp", 7 * MS, 8 * MS, 1), ("GPU-0", 7, "memcpy", "of nobody", 0, 99 * MS, None),
    ]  # fmt: skip
    made["activities"] = ACTIVITIES.validate(pl.DataFrame(rows, schema=SEVEN, orient="row"), "here")
    made["marks"] = window(0, 100 * MS, 4)
    (cost,) = traced_step_costs(made, 10.0, PROFILE)
    assert cost.seconds.tolist() == pytest.approx([0.005, 0.001, 0.0])
    assert cost.joules is not None
    total = 5 * MATMUL + BOUND
    assert cost.joules.tolist() == pytest.approx([50 * MATMUL / total, 10 * BOUND / total, 0.0], rel=1e-6)


def test_where_a_kernel_is_missing_the_others_tell_nothing() -> None:
    ran = [("aten.mm.default", 3), ("aten.exp.default", 2)]
    made = tables(ran, ran)
    rows = [("GPU-0", 7, "kernel", "gemm", 1 * MS, 5 * MS, 0), ("GPU-0", 7, "kernel", "gemm", 201 * MS, 208 * MS, 2),
            ("GPU-0", 7, "kernel", "exp", 210 * MS, 219 * MS, 3)]  # fmt: skip
    made["activities"] = ACTIVITIES.validate(pl.DataFrame(rows[:1], schema=SEVEN, orient="row"), "here")
    made["marks"] = window(0, 100 * MS, 2)  # there were two: that of exp was lost
    for cost in traced_step_costs(made, 10.0, PROFILE):
        assert cost.seconds.tolist() == pytest.approx([0.003, 0.002])
    made["activities"] = ACTIVITIES.validate(pl.DataFrame(rows, schema=SEVEN, orient="row"), "here")
    made["marks"] = pl.concat([made["marks"], window(200 * MS, 300 * MS, 2)])
    for cost in traced_step_costs(made, 10.0, PROFILE):  # the step with all of them tells, not what the host saw
        assert cost.seconds.tolist() == pytest.approx([0.007, 0.009])


def test_what_is_not_known_is_not_made_up() -> None:
    (cost,) = traced_step_costs(tables([("aten.mm.default", 3), ("aten.exp.default", None)]), 8.0, PROFILE)
    assert cost.joules is None
    assert cost.seconds.tolist() == pytest.approx([0.003, 0.0])
    (cost,) = traced_step_costs(tables([("aten.mm.default", 3)]), None, PROFILE)
    assert cost.joules is None
    assert traced_step_costs(tables(), 8.0, PROFILE) == ()


def replayed_rows(
    table: pl.DataFrame, values: pl.DataFrame, joules: dict[str, float], **changes: object
) -> pl.DataFrame:
    keys = dict(zip(table["name"], signatures(table, values), strict=True))
    known = dict.fromkeys(REPLAYED.columns) | {"energy_kind": "replayed", "conclusive": True} | changes
    rows = [known | {"key": keys[name], "name": name, "joules": j} for name, j in joules.items()]
    return pl.DataFrame(rows, schema=REPLAYED.schema)


def test_replayed_joules_stand_in_place_of_shares_and_what_is_left_over_is_said() -> None:
    step = [("aten.mm.default", 3), ("aten.exp.default", 1), ("aten.mm.default", 3)]
    made = tables(step)
    total, share = 6 * MATMUL + BOUND, 1 * BOUND
    found = replayed_rows(made["ops"], made["values"], {"aten.mm.default": 2.5})
    costs = traced_step_costs(made, 10.0, PROFILE, found)
    assert costs[0].replayed is not None
    assert costs[0].replayed.tolist() == [True, False, True]
    assert costs[0].joules is not None
    assert costs[0].joules.tolist() == pytest.approx([2.5, 10 * share / total, 2.5], rel=1e-6)
    whole = 5 + 10 * share / total
    assert replay_residual(costs, 10.0) == (
        f"2 of 3 operators were replayed: together with the shares of the others a step has {whole:.4g} J, "
        f"the run says 10 J, residual {10 - whole:+.3g} J"
    )


@pytest.mark.parametrize("changes", [{"energy_kind": "modelled"}, {"conclusive": False}])
def test_what_replay_did_not_settle_changes_nothing(changes: dict[str, object]) -> None:
    made = tables([("aten.mm.default", 3)])
    found = replayed_rows(made["ops"], made["values"], {"aten.mm.default": 99.0}, **changes)
    (cost,) = traced_step_costs(made, 10.0, PROFILE, found)
    assert cost.replayed is None
    assert cost.joules is not None
    assert cost.joules.tolist() == pytest.approx([10.0])
    assert replay_residual((cost,), 10.0) == ""
