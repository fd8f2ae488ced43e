"""Replay of a recorded step in real processes, under meters whose power is known."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from magneton_dist.energy.replay import run as run_room
from magneton_dist.energy.replay.plan import candidates, groups_across_hosts
from magneton_dist.energy.replay.protocol import Rules
from magneton_dist.energy.replay.results import REPLAYED, one_at_a_time, read_replayed, write_replayed
from magneton_dist.energy.replay.run import Progress, replay_runs
from magneton_dist.errors import InputError, RecordError
from magneton_dist.meters import Meter, ModelledMeter, NullMeter, load_profile
from magneton_dist.records.inputs import kept_inputs
from magneton_dist.records.manifest import RankRun
from magneton_dist.records.schema import COLLECTIVES, KNOBS, OPS
from magneton_dist.records.store import RunRecord, write_manifest, write_rank

pytestmark = pytest.mark.timeout(400)  # a busy machine takes many times longer

PROFILE = load_profile("h200")
QUICK = Rules(warm_up_s=0.05, discard_s=0.05, window_s=0.2, fewest=3, most=3, half_width=0.5)
Make = Callable[..., RunRecord]
WATTS = 40.0  # of the fixture `steady_meter`


def collective(**changes: Any) -> dict[str, Any]:
    known = {"call_id": 0, "group": "0", "group_size": 2, "group_rank": 0, "op": "allreduce_", "origin": "ddp",
             "bytes": 4096, "dtype": "float32", "step": 0, "issue_ns": 0, "start_ns": 0, "end_ns": 1000}  # fmt: skip
    return {**dict.fromkeys(COLLECTIVES.columns), **known, **changes}


def by_name(rows: list[tuple[dict[str, Any], set[str]]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row, _ in rows}


def test_joules_are_the_meters_watts_over_the_time_of_a_call(make_run: Make, steady_meter: Meter) -> None:
    run, said = make_run(), list[Progress]()
    found = replay_runs(
        {"a": [run]}, lambda _: steady_meter, ["cpu"], PROFILE, budget_s=600, rules=QUICK,
        only="addmm|embedding|add_", on_progress=said.append,
    )  # fmt: skip
    rows = by_name(found.rows)
    assert {"aten.addmm.default", "aten.embedding.default", "aten.add_.Tensor"} <= set(rows)
    for row, _ in found.rows:
        assert row["notes"].endswith("by counter"), row["notes"]
        assert row["energy_kind"] == "replayed"
        assert row["joules"] == pytest.approx(WATTS * row["seconds"])
        assert row["low_j"] <= row["joules"] <= row["high_j"]
        assert row["net_j"] == pytest.approx(0, abs=1e-6 * row["joules"])  # it idles at the same watts
        assert row["inputs"] == "random"
        assert row["device"] == "cpu"
        assert row["meter"].startswith("a steady device")
    assert [p.done for p in said] == list(range(len(found.rows)))
    assert found.left_out == 0
    kept = read_replayed(run.folder)
    assert kept.schema == REPLAYED.schema
    assert dict(kept.select("key", "joules").iter_rows()) == {row["key"]: row["joules"] for row, _ in found.rows}


def test_without_a_meter_joules_are_modelled_or_unmeasured(make_run: Make) -> None:
    run = make_run()
    quick = Rules(warm_up_s=0.05, discard_s=0, window_s=0.05, fewest=3, most=3)
    rows = []
    for meter in (ModelledMeter(PROFILE, "cpu"), NullMeter("cpu")):
        found = replay_runs(
            {"a": [run]}, lambda _, m=meter: m, ["cpu"], PROFILE, budget_s=60, rules=quick, only="addmm"
        )  # fmt: skip
        rows += by_name(found.rows).values()
    modelled, unmeasured = rows
    matmul = PROFILE.operators["matmul"]
    assert modelled["energy_kind"] == "modelled"
    assert modelled["joules"] == pytest.approx(matmul.nominal * modelled["seconds"])
    assert modelled["low_j"] == pytest.approx(matmul.low * modelled["seconds"])
    assert modelled["high_j"] == pytest.approx(matmul.high * modelled["seconds"])
    assert modelled["net_j"] is None
    assert unmeasured["energy_kind"] == "unmeasured"
    assert unmeasured["joules"] is None
    assert unmeasured["seconds"] > 0


def test_collectives_are_replayed_by_their_ranks(make_run: Make, steady_meter: Meter) -> None:
    many = collective(call_id=2, group_size=4096)
    rows_ = [collective(), collective(call_id=1, op="barrier", bytes=4), many]
    calls = pl.DataFrame(rows_, schema=COLLECTIVES.schema)
    found = replay_runs(
        {"a": [make_run(collectives=calls)]}, lambda _: steady_meter, ["cpu"], PROFILE, budget_s=600, rules=QUICK,
        only="allreduce|barrier",
    )  # fmt: skip
    rows = by_name(found.rows)
    assert rows["allreduce_"]["joules"] == pytest.approx(WATTS * rows["allreduce_"]["seconds"])
    assert rows["allreduce_"]["how"] == "loop, all ranks together"
    assert rows["barrier"]["seconds"] is None
    assert "is not replayed" in rows["barrier"]["notes"]
    assert found.notes == ["1 kinds of calls need other devices, or more, than cpu"]


def across(run: RunRecord, hosts: dict[int, str], groups: dict[str, list[int]]) -> RunRecord:
    """The run with these ranks on these hosts, each of which called an all-reduce in these groups."""
    for rank in hosts:
        mine = [(name, members) for name, members in groups.items() if rank in members]
        calls = [
            collective(call_id=n, group=name, group_size=len(members), group_rank=members.index(rank))
            for n, (name, members) in enumerate(mine)
        ]
        write_rank(run.folder, rank, {"collectives": pl.DataFrame(calls, schema=COLLECTIVES.schema)})
    ranks = [RankRun(rank=rank, local_rank=0, node=host) for rank, host in hosts.items()]
    write_manifest(run.folder, msgspec.structs.replace(run.manifest, world_size=len(ranks), ranks=ranks))
    return RunRecord(run.folder)


def test_a_group_that_spans_hosts_is_refused_and_one_that_does_not_is_replayed(make_run: Make) -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    run = across(make_run(), hosts, {"0": [0, 1, 2, 3], "node": [0, 1], "pair": [0, 2]})
    assert groups_across_hosts(run) == {"0": ("a", "b"), "pair": ("a", "b")}
    found = replay_runs(
        {"a": [run]}, lambda _: NullMeter("cpu"), ["cpu"], PROFILE, budget_s=60, only="allreduce",
        rules=Rules(warm_up_s=0.05, discard_s=0, window_s=0.05, fewest=3, most=3),
    )  # fmt: skip
    ((row, _),) = found.rows
    assert (row["key"], row["seconds"] > 0) == ("allreduce_:4096:float32:2", True)  # of the pair on one host
    (note,) = found.notes
    assert note.startswith("2 kinds of collectives ran across hosts (a, b) and are not replayed")


def test_where_all_that_is_asked_for_spans_hosts_that_is_the_reason(make_run: Make) -> None:
    run = across(make_run(), {0: "a", 1: "b"}, {"0": [0, 1]})
    with pytest.raises(InputError, match=r"ran across hosts \(a, b\) and are not replayed: one machine has no network"):
        replay_runs({"a": [run]}, lambda _: NullMeter("cpu"), ["cpu"], PROFILE, budget_s=60, only="allreduce")


def test_a_group_of_which_ranks_are_missing_counts_as_one_across_all_hosts(make_run: Make) -> None:
    run = across(make_run(), {0: "a", 1: "a", 2: "b"}, {"0": [0, 1, 2], "node": [0, 1]})
    shutil.rmtree(run.ranks[1].folder)
    assert groups_across_hosts(RunRecord(run.folder)) == {"0": ("a", "b"), "node": ("a", "b")}


def test_a_budget_is_kept_and_one_too_small_refused(make_run: Make) -> None:
    run, meter = make_run(), NullMeter("cpu")
    rules = Rules(warm_up_s=0.05, discard_s=0, window_s=0.3, fewest=3, most=12, half_width=1e-9)
    found = replay_runs({"a": [run]}, lambda _: meter, ["cpu"], PROFILE, budget_s=10, rules=rules)
    assert 1 <= len(found.rows) < found.left_out + len(found.rows)
    with pytest.raises(InputError, match="one replay takes 6 s"):
        replay_runs({"a": [run]}, lambda _: meter, ["cpu"], PROFILE, budget_s=2, rules=rules)
    with pytest.raises(InputError, match="matches nothing"):
        replay_runs({"a": [run]}, lambda _: meter, ["cpu"], PROFILE, budget_s=9, only="conv3d")


def test_newer_rows_replace_older_ones_and_damage_is_named(tmp_path: Path) -> None:
    row = dict.fromkeys(REPLAYED.columns) | {"key": "k", "joules": 1.0}
    other = row | {"key": "other", "joules": 5.0}
    write_replayed(tmp_path, pl.DataFrame([row, other], schema=REPLAYED.schema))
    write_replayed(tmp_path, pl.DataFrame([row | {"joules": 2.0}], schema=REPLAYED.schema))
    assert dict(read_replayed(tmp_path).select("key", "joules").iter_rows()) == {"other": 5.0, "k": 2.0}
    (tmp_path / "replayed.parquet").write_bytes(b"no parquet")
    with pytest.raises(RecordError, match="replay again"):
        read_replayed(tmp_path)


def test_recorded_inputs_are_worked_on_and_then_deleted(make_run: Make) -> None:
    run = make_run()
    (op,) = run.ranks[0].ops.filter(pl.col("name") == "aten.embedding.default").to_dicts()
    weight, tokens = op["inputs"]
    folder = run.ranks[0].folder
    (folder / f"input-{weight}.bin").write_bytes(np.ones((100, 32), np.float32).tobytes())
    (folder / f"input-{tokens}.bin").write_bytes(np.full((16, 8), 99, np.int64).tobytes())
    quick = Rules(warm_up_s=0.05, discard_s=0, window_s=0.05, fewest=3, most=3)
    found = replay_runs(
        {"a": [run]}, lambda _: NullMeter("cpu"), ["cpu"], PROFILE, budget_s=60, rules=quick,
        only="embedding.default",
    )  # fmt: skip
    ((row, _),) = found.rows
    assert row["inputs"] == "recorded"
    assert row["seconds"] > 0, row["notes"]
    assert kept_inputs(folder) == {}


def test_inputs_are_kept_until_all_that_works_on_them_was_replayed(make_run: Make) -> None:
    run = make_run()
    ops = run.ranks[0].ops
    folder = run.ranks[0].folder
    shapes = {row["value_id"]: row for row in run.ranks[0].values.to_dicts()}
    named = ("aten.embedding.default", "aten.relu.default")
    for value in {v for inputs in ops.filter(pl.col("name").is_in(named))["inputs"] for v in inputs}:
        known = shapes[value]
        kind = np.int64 if known["dtype"] == "int64" else np.float32
        (folder / f"input-{value}.bin").write_bytes(np.zeros(known["shape"], kind).tobytes())
    kept = set(kept_inputs(folder))
    quick = Rules(warm_up_s=0.05, discard_s=0, window_s=0.05, fewest=3, most=3)

    def replayed(only: str) -> list[str]:
        return replay_runs(
            {"a": [run]}, lambda _: NullMeter("cpu"), ["cpu"], PROFILE, budget_s=60, rules=quick, only=only
        ).notes  # fmt: skip

    assert replayed("embedding.default") == ["recorded inputs are kept for aten.relu.default: replay again"]
    assert set(kept_inputs(folder)) == kept
    assert replayed("relu.default") == []  # the other one was, before
    assert kept_inputs(folder) == {}


def test_what_reads_no_tensor_worked_on_nothing_recorded(make_run: Make, step_tables: dict[str, pl.DataFrame]) -> None:
    (op,) = step_tables["ops"].filter(pl.col("name") == "aten.relu.default").to_dicts()
    arange = {**op, "name": "aten.arange.default", "inputs": [], "arguments": "[64]"}
    run = make_run(ops=pl.DataFrame([arange, {**op, "op_id": op["op_id"] + 1}], schema=step_tables["ops"].schema))
    (run.ranks[0].folder / f"input-{op['inputs'][0]}.bin").touch()
    found = {c.name: c.inputs for c in candidates({"a": run.ranks[0]}, PROFILE)}
    assert found["aten.arange.default"] == "random"
    assert found["aten.relu.default"] == "recorded"


def test_only_the_devices_under_load_are_metered(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, list[str]] = {}

    def noted(group: Any, benches: Any, watch: Any, *_: Any) -> None:
        loaded[group[0].name] = [meter.device for meter in watch.meters]

    monkeypatch.setattr(run_room, "replay_together", noted)
    calls = pl.DataFrame([collective()], schema=COLLECTIVES.schema)
    on_gpu = make_run().ranks[0].values.with_columns(device=pl.lit("cuda:0"))
    run = make_run("b", collectives=calls, values=on_gpu)
    with pytest.raises(InputError, match="one replay takes"):  # none was made
        replay_runs(
            {"b": [run]}, NullMeter, ["GPU-a", "GPU-b", "GPU-c"], PROFILE, budget_s=600, rules=QUICK,
            only="addmm.default|allreduce",
        )  # fmt: skip
    assert loaded == {"aten.addmm.default": ["GPU-a"], "allreduce_": ["GPU-a", "GPU-b"]}


def test_what_cannot_be_replayed_here_is_said_before_anything_runs(
    make_run: Make, step_tables: dict[str, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    def replayed(run: RunRecord, devices: list[str]) -> None:
        replay_runs({"a": [run]}, NullMeter, devices, PROFILE, budget_s=600, rules=QUICK)

    with pytest.raises(InputError, match="need other devices, or more, than GPU-a"):
        replayed(run, ["GPU-a"])
    with one_at_a_time([run.folder]), pytest.raises(InputError, match="another replay works on it"):
        replayed(run, ["cpu"])
    (run.folder / "replayed.parquet").write_bytes(b"no parquet")
    with pytest.raises(RecordError, match="replay again"):
        replayed(run, ["cpu"])
    cut = step_tables["ops"].with_columns(arguments=pl.col("arguments").str.slice(0, 3))
    with pytest.raises(RecordError, match="are no JSON"):
        replayed(make_run("cut", ops=cut), ["cpu"])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # which files deny, but not to root
    with pytest.raises(RecordError, match="cannot be written to"):
        replayed(make_run("closed"), ["cpu"])


def test_a_first_run_that_was_killed_early_does_not_stop_the_others(make_run: Make) -> None:
    killed, whole = make_run(ops=OPS.empty()), make_run(repeat=1)
    quick = Rules(warm_up_s=0.05, discard_s=0, window_s=0.05, fewest=3, most=3)
    found = replay_runs(
        {"a": [killed, whole], "none": []}, NullMeter, ["cpu"], PROFILE, budget_s=60, rules=quick, only="addmm"
    )
    assert found.rows
    assert read_replayed(whole.folder).height == read_replayed(killed.folder).height == len(found.rows)


def test_a_measured_row_is_not_replaced_by_one_that_was_not(tmp_path: Path) -> None:
    row = dict.fromkeys(REPLAYED.columns) | {"key": "k", "joules": 1.0, "energy_kind": "replayed"}
    for joules, kind in ((1.0, "replayed"), (2.0, "modelled"), (None, "unmeasured")):
        write_replayed(tmp_path, pl.DataFrame([row | {"joules": joules, "energy_kind": kind}], schema=REPLAYED.schema))
        assert read_replayed(tmp_path)["joules"].to_list() == [1.0]
    write_replayed(tmp_path, pl.DataFrame([row | {"joules": 3.0}], schema=REPLAYED.schema))
    assert read_replayed(tmp_path)["joules"].to_list() == [3.0]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_interrupted_it_leaves_nothing_behind(make_run: Make, tmp_path: Path, number: signal.Signals) -> None:
    run, temporary = make_run(), tmp_path / "temporary"
    temporary.mkdir()
    replaying = subprocess.Popen(
        [sys.executable, "-m", "magneton_dist.commands", "replay", str(run.folder), "--budget", "10m"],
        env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until_s = time.monotonic() + 120
    while not (run.folder / "replayed.parquet").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    (worker,) = Path(f"/proc/{replaying.pid}/task/{replaying.pid}/children").read_text().split()
    replaying.send_signal(number)
    _, said = replaying.communicate(timeout=60)
    assert replaying.returncode == 130, said
    assert "interrupted" in said
    assert not Path(f"/proc/{worker}").exists()
    assert list(temporary.iterdir()) == []
    assert read_replayed(run.folder).height >= 1  # what was found stays


def test_the_same_call_under_different_settings_takes_turns(make_run: Make, steady_meter: Meter) -> None:
    def setting(value: str) -> pl.DataFrame:  # of no effect on a CPU
        return pl.DataFrame({"name": ["torch.backends.cudnn.benchmark"], "value": [value]}, schema=KNOBS.schema)

    runs = {"on": [make_run("on", knobs=setting("True"))], "off": [make_run("off", knobs=setting("False"))]}
    found = replay_runs(
        runs, lambda _: steady_meter, ["cpu"], PROFILE, budget_s=600, rules=QUICK, only="addmm.default",
    )  # fmt: skip
    (one, of_one), (two, of_two) = found.rows
    assert (of_one | of_two, len(of_one)) == ({"on", "off"}, 1)
    assert one["key"] == two["key"]
    assert one["windows"] == two["windows"] >= QUICK.fewest
    (first,), (second,) = of_one, of_two
    told = re.search(rf"in turns, {first} takes ([\d.]+) \(([\d.]+) to ([\d.]+)\) of {second}", one["notes"])
    assert told is not None
    mean, low, high = map(float, told.groups())
    assert low <= mean <= high
    assert 0.1 < mean < 10  # the same work, on a machine that others use
    kept = [read_replayed(runs[variant][0].folder)["joules"][0] for variant in (first, second)]
    assert kept == [one["joules"], two["joules"]]
