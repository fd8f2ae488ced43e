from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from magneton_dist.energy.replay.plan import Settings, candidates
from magneton_dist.energy.replay.signature import signatures
from magneton_dist.meters import load_profile
from magneton_dist.records.schema import KNOBS
from magneton_dist.records.store import RunRecord

PROFILE = load_profile("h200")
Make = Callable[..., RunRecord]


def knobs(**values: str) -> pl.DataFrame:
    rows = {"name": [name.replace("__", ".") for name in values], "value": list(values.values())}
    return pl.DataFrame(rows, schema=KNOBS.schema)


def test_calls_that_are_alike_have_one_signature(make_run: Make) -> None:
    tables = make_run().ranks[0]
    found = dict(zip(tables.ops["op_id"], signatures(tables.ops, tables.values), strict=True))
    by_name: dict[str, list[str]] = {}
    for op_id, name in tables.ops.select("op_id", "name").iter_rows():
        by_name.setdefault(name, []).append(found[op_id])
    assert len(by_name["aten.addmm.default"]) == 2  # both layers: same shapes
    assert len(set(by_name["aten.addmm.default"])) == 1
    # gradients of weights 64x32 and 100x32 and of biases: updated in place, same alpha, other shapes
    assert len(set(by_name["aten.add_.Tensor"])) == 3
    assert len({key for name in by_name for key in by_name[name]}) > len(by_name)


def test_candidates_count_calls_and_take_settings_along(make_run: Make) -> None:
    run = make_run(knobs=knobs(torch__get_num_threads="3", env__OMP_NUM_THREADS="3", env__LD_PRELOAD="evil.so"))
    found = {c.name: c for c in candidates({"a": run.ranks[0]}, PROFILE)}
    addmm = found["aten.addmm.default"]
    assert addmm.calls == {"a": 2.0}
    assert addmm.variants == {"a"}
    assert addmm.kind == "matmul"
    assert addmm.settings == Settings({"OMP_NUM_THREADS": "3"}, {"torch.get_num_threads": "3"})
    matmul = PROFILE.operators["matmul"]
    assert addmm.gain_j(1) == pytest.approx((matmul.high - matmul.low) * addmm.seconds * 2)
    assert not any(".view." in name or ".t." in name for name in found)  # no energy to speak of


def test_what_variants_do_equally_often_comes_last(make_run: Make) -> None:
    ops = make_run().ranks[0].ops
    twice = pl.concat([ops, ops.filter(pl.col("name") == "aten.relu.default").with_columns(pl.col("op_id") + 10_000)])
    both = {"a": make_run("a").ranks[0], "b": make_run("b", ops=twice).ranks[0]}
    first, *others = candidates(both, PROFILE)
    assert first.name == "aten.relu.default"
    assert first.calls == {"a": 1.0, "b": 2.0}
    assert all(c.calls["a"] == c.calls["b"] for c in others)
    other_threads = {"a": both["a"], "b": make_run("b", knobs=knobs(torch__get_num_threads="1")).ranks[0]}
    assert all(len(c.variants) == 1 for c in candidates(other_threads, PROFILE))
