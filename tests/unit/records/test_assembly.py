import json
import math
import time
from pathlib import Path

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.records.assembly import TABLE_OF, assemble
from magneton_dist.records.schema import TABLES
from magneton_dist.tracer.rows import FIELDS

OP = ["op", 4, 2, "aten.mm.default", "forward", [1, 2], [3], '[{"v": 1}, {"v": 2}]', 7, 100, 180]


def segment(folder: Path, number: int, *rows: object, ending: str = "\n", suffix: str = "jsonl") -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = folder / f"{number:06d}.{suffix}"
    path.write_text("\n".join(lines) + ending)
    return path


def call(call_id: int, issue_ns: int, end_ns: int | None) -> list[object]:
    return [
        "collective", call_id, "0", 2, 0, call_id, "allreduce_", "ddp", 400, "float32", None, None, 0,
        issue_ns, issue_ns, end_ns, None,
    ]  # fmt: skip


def test_every_row_kind_has_a_table_with_its_fields():
    assert TABLE_OF.keys() == FIELDS.keys()
    for kind, name in TABLE_OF.items():
        assert FIELDS[kind] == tuple(TABLES[name].columns)


def test_one_row_of_each_kind_lands_in_its_table(tmp_path: Path):
    segment(
        tmp_path,
        0,
        ["stamp", 10, 4, 1],
        ["step", 2, 0, 200, "traced", 128, "tokens"],
        call(0, 5, 9),
        ["collective_sum", "0", "allreduce_", "ddp", None, 3, 1200, 99],
        OP,
        ["value", 1, 1, 0, 0, [2, 3], [3, 1], "float32", "cpu", 24, "input", None, True],
        ["fingerprint", [1], "0f", 6, 1.0, 2.0, 3.0, 2.5, 0.0, [2, 3], [2], [0.8], [], [], []],
        ["activity", "cpu", 0, "cpu", "gemm", 1, 2, 4, None, 0.25],
        ["stack", 7, [["train.py", 12, "main"], ["train.py", 40, "<module>"]]],
        ["knob", "version.torch", "2.13"],
        ["parameter", "w", [2], "float32", 1.5, 2.5, 1.8, "00ff", [0.5, -0.5]],
        ["mark", "exit", 300, "{}"],
        ["fault", "graph", "something"],
    )
    tables = assemble(tmp_path)
    for name, frame in tables.items():
        TABLES[name].validate(frame, "here")
        assert frame.height == 1, name
    assert tables["ops"].row(0, named=True) == {
        "op_id": 4,
        "step": 2,
        "name": "aten.mm.default",
        "phase": "forward",
        "inputs": [1, 2],
        "outputs": [3],
        "arguments": '[{"v": 1}, {"v": 2}]',
        "stack_id": 7,
        "start_ns": 100,
        "end_ns": 180,
    }
    assert tables["stacks"]["frames"].to_list() == [
        [
            {"file": "train.py", "line": 12, "function": "main"},
            {"file": "train.py", "line": 40, "function": "<module>"},
        ]
    ]
    assert tables["steps"]["units"].to_list() == [128.0]
    assert tables["parameters"]["projections"].to_list() == [[0.5, -0.5]]


def test_empty_lists_stay_lists(tmp_path: Path):
    segment(tmp_path, 0, [*OP[:5], [], [9], *OP[7:]], [OP[0], 5, *OP[2:5], [1], [], *OP[7:]])
    ops = assemble(tmp_path)["ops"]
    assert ops["inputs"].to_list() == [[], [1]]
    assert ops["outputs"].to_list() == [[9], []]


def test_no_rows_at_all_gives_every_table_empty(tmp_path: Path):
    tables = assemble(tmp_path)
    assert {name: frame.height for name, frame in tables.items()} == dict.fromkeys(TABLE_OF.values(), 0)


def test_a_later_row_of_a_call_replaces_the_earlier_one_across_segments(tmp_path: Path):
    segment(tmp_path, 0, call(0, 10, None), call(1, 20, 25), call(2, 30, None))
    segment(tmp_path, 1, call(0, 10, 90))
    calls = assemble(tmp_path)["collectives"]
    assert calls.select("call_id", "end_ns").rows() == [(0, 90), (1, 25), (2, None)]


def test_rows_come_sorted_by_time_whatever_the_order_of_writing(tmp_path: Path):
    segment(tmp_path, 0, ["mark", "b", 20, "{}"], ["mark", "a", 10, "{}"], call(1, 50, 60), call(0, 40, 90))
    tables = assemble(tmp_path)
    assert tables["marks"]["name"].to_list() == ["a", "b"]
    assert tables["collectives"]["call_id"].to_list() == [0, 1]


@pytest.mark.parametrize("suffix", ["jsonl", "open"])
def test_a_torn_last_line_costs_that_line_only_and_is_named(tmp_path: Path, suffix: str):
    segment(tmp_path, 0, ["stamp", 1, 1, 0])
    segment(tmp_path, 1, ["stamp", 2, 2, 0], '["stamp", 3, 2', ending="", suffix=suffix)
    tables = assemble(tmp_path)
    assert tables["stamps"]["t_ns"].to_list() == [1, 2]
    assert tables["faults"].rows() == [("spool", f"000001.{suffix}: 1 row(s) left out: a torn last line")]


def test_a_line_torn_in_the_middle_of_a_character_is_named(tmp_path: Path):
    (tmp_path / "000000.jsonl").write_bytes(b'["knob", "a", "1"]\n["knob", "b", "\xc3')
    tables = assemble(tmp_path)
    assert tables["knobs"].rows() == [("a", "1")]
    assert "torn" in tables["faults"]["message"][0]


def test_damage_inside_a_segment_is_told_from_a_torn_end(tmp_path: Path):
    segment(tmp_path, 0, '["stamp", 1,', ["stamp", 2, 2, 0])
    tables = assemble(tmp_path)
    assert tables["stamps"]["t_ns"].to_list() == [2]
    assert tables["faults"]["message"].to_list() == ["000000.jsonl: 1 row(s) left out: no JSON"]


def test_unknown_kinds_and_wrong_types_are_counted_and_named(tmp_path: Path):
    segment(
        tmp_path,
        0,
        ["novel", 1],
        ["novel", 2],
        ["stamp", "noon", 1, 0],
        {"stamp": 1},
        ["stamp", 5, 1, 0],
        ["stamp", 2**63, 0, 0],
    )
    tables = assemble(tmp_path)
    assert tables["stamps"]["t_ns"].to_list() == [5]
    messages = tables["faults"]["message"].to_list()
    assert "000000.jsonl: 2 row(s) left out: unknown row kind 'novel'" in messages
    assert any("a 'stamp' row that does not fit its table: Expected `int | null`" in m for m in messages)
    assert any("not a row" in m for m in messages)
    assert len(messages) == 4


def test_rows_of_a_newer_tracer_with_more_fields_are_read(tmp_path: Path):
    segment(tmp_path, 0, ["stamp", 1, 2, 3, "new"])
    assert assemble(tmp_path)["stamps"].rows() == [(1, 2, 3)]


def test_not_a_number_survives(tmp_path: Path):
    nan, inf = float("nan"), float("inf")
    segment(tmp_path, 0, ["parameter", "w", [1], "float32", nan, inf, inf, "0", []])
    row = assemble(tmp_path)["parameters"].row(0, named=True)
    assert math.isnan(row["sum"])
    assert row["l1"] == inf


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(RecordError, match="no spool segments"):
        assemble(tmp_path / "nowhere")


def test_batches_join_into_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("magneton_dist.records.assembly.BATCH_ROWS", 3)
    for number in range(5):
        segment(tmp_path, number, *(["stamp", 2 * number + i, 0, 0] for i in range(2)))
    assert assemble(tmp_path)["stamps"]["t_ns"].to_list() == list(range(10))


def test_many_rows_are_read_fast(tmp_path: Path):
    count = 60_000
    segment(tmp_path, 0, *([OP[0], i, *OP[2:]] for i in range(count)))
    began = time.process_time()
    ops = assemble(tmp_path)["ops"]
    took_s = time.process_time() - began
    assert ops["op_id"].to_list() == list(range(count))
    assert ops.schema["inputs"] == pl.List(pl.Int64)
    # 300,000 rows/s alone on a core; the bound leaves room for a crowded machine
    assert took_s < count / 60_000


def test_steps_before_the_job_says_its_own_are_void(tmp_path: Path):
    def step(number: int, start: int, end: int) -> list[object]:
        return ["step", number, start, end, "measured", None, None]

    segment(tmp_path, 0, step(0, 0, 10), step(1, 10, 20), ["mark", "steps_by_call", 25, None], step(0, 0, 26))
    segment(tmp_path, 1, step(1, 26, 40))
    steps = assemble(tmp_path)["steps"]
    assert steps.select("step", "start_ns", "end_ns").rows() == [(0, 0, 26), (1, 26, 40)]


def test_collective_sums_are_added_up_per_key(tmp_path: Path):
    key, other = ["0", "allreduce_", "ddp", 3], ["0", "allreduce_", "ddp", None]
    segment(tmp_path, 0, ["collective_sum", *key, 2, 80, 7], ["collective_sum", *other, 1, 5, 1])
    segment(tmp_path, 1, ["collective_sum", *key, 3, 20, 3])
    sums = assemble(tmp_path)["collective_sums"]
    assert sums.schema == TABLES["collective_sums"].schema
    assert sums.rows() == [(*key, 5, 100, 10), (*other, 1, 5, 1)]
