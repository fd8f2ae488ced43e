"""Broken and foreign files: named with file and offset, mended where it is clear how, counted."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from magneton_dist.errors import RecordError
from magneton_dist.importers import bytestream, eventstream
from magneton_dist.importers.eventstream import EventStream
from magneton_dist.importers.kineto import RankTrace, read_trace


def faults(trace: RankTrace) -> str:
    return "; ".join(trace.tables["faults"]["message"])


def raw(tmp_path: Path, *events: bytes, tail: bytes = b"]}") -> Path:
    path = tmp_path / "rank-0.json"
    path.write_bytes(b'{"schemaVersion": 1, "traceEvents": [' + b", ".join(events) + tail)
    return path


def event(name: bytes = b"k", ts: bytes = b"10", dur: bytes = b"5", args: bytes = b"{}") -> bytes:
    return (
        b'{"ph": "X", "cat": "kernel", "name": "' + name + b'", "pid": 0, "tid": 7, "ts": ' + ts
        + b', "dur": ' + dur + b', "args": ' + args + b"}"
    )  # fmt: skip


def test_truncated_json_is_named_with_its_length(tmp_path: Path) -> None:
    path = raw(tmp_path, event(), event()[:30], tail=b"")
    with pytest.raises(RecordError, match=rf"cut off at byte {path.stat().st_size}") as error:
        read_trace(path)
    assert str(path) in str(error.value)


def test_truncated_gzip_is_named_with_its_length(tmp_path: Path) -> None:
    whole = gzip.compress(raw(tmp_path, *[event(b"k%d" % n) for n in range(500)]).read_bytes())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordError, match=rf"the gzip is cut off at byte {len(whole) // 2}"):
        read_trace(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(raw(tmp_path, *[event(b"k%d" % n) for n in range(500)]).read_bytes()))
    whole[40:60] = b"\xff" * 20
    path = tmp_path / "bad.json.gz"
    path.write_bytes(bytes(whole))
    with pytest.raises(RecordError, match="compression is damaged"):
        read_trace(path)


def test_raw_quotes_are_mended(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(b'say "hi", {now}, {then}'), event()))
    assert trace.tables["activities"]["name"].to_list() == ["k", 'say "hi", {now}, {then}', "k"]
    assert "mended 1 event(s) with malformed JSON" in faults(trace)


def test_bad_utf_8_and_raw_line_breaks_are_mended(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(b"a\xff\xfeb"), event(b"c\nd"), event()))
    assert trace.tables["activities"]["name"].to_list() == ["a\ufffd\ufffdb", "c\nd", "k"]
    assert "1 event(s) with text that is not UTF-8" in faults(trace)


def test_strict_names_the_byte(tmp_path: Path) -> None:
    path = raw(tmp_path, event(), event(b'say "hi"'))
    at = path.read_bytes().index(b'hi"')
    with pytest.raises(RecordError, match=rf"byte {at}: malformed JSON"):
        read_trace(path, strict=True)


def test_an_event_beyond_repair_is_dropped_and_makes_idle_unproven(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(ts=b"NaN"), event(ts=b"20")))
    assert trace.tables["activities"].height == 2
    assert "dropped 1 event(s) with malformed JSON" in faults(trace)
    assert json.loads(trace.tables["marks"]["detail"][0])["activities"] == 3


def test_negative_and_zero_durations(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(dur=b"-3"), event(dur=b"0")))
    assert trace.tables["activities"].height == 2
    assert "dropped 1 event(s) with negative durations" in faults(trace)
    with pytest.raises(RecordError, match="negative durations"):
        read_trace(tmp_path / "rank-0.json", strict=True)


def test_integers_beyond_64_bits(tmp_path: Path) -> None:
    huge = b"101599708867660844239999"
    args = b'{"correlation": ' + huge + b', "Comms Id": ' + huge + b', "stream": 7}'
    trace = read_trace(raw(tmp_path, event(args=args), event(ts=huge), event(b"other", args=b'{"stream": [1]}')))
    assert trace.tables["activities"].height == 2
    assert "times that are no numbers of microseconds" in faults(trace)
    assert "mended 1 event(s) with arguments of an unknown type" in faults(trace)


def test_a_name_of_10_mb(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(b"x" * 10_000_000), event()))
    assert [len(n) for n in trace.tables["activities"]["name"]] == [1, 4096, 1]


def test_metadata_after_the_events_is_read(tmp_path: Path) -> None:
    devices = b'"deviceProperties": [{"id": 0, "name": "X"}, {"id": 1}]'
    tail = b'], "distributedInfo": {"rank": 5, "world_size": 8}, ' + devices + b"}"
    trace = read_trace(raw(tmp_path, event(), tail=tail))
    assert (trace.rank, trace.world_size, trace.device_name) == (5, 8, "X")


def test_metadata_after_a_mended_event_is_read(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(b'a "b" c'), tail=b'], "distributedInfo": {"rank": 5}}'))
    assert (trace.rank, trace.tables["activities"].height) == (5, 2)


@pytest.mark.parametrize("piece", [7, 64, 1000])
def test_where_the_pieces_are_cut_changes_nothing(tmp_path: Path, monkeypatch: Any, piece: int) -> None:
    tricky = [event(b"n%d }, { " % n, args=b'{"shapes": [{"a": 1}, {"b": 2}], "stream": %d}' % n) for n in range(20)]
    tricky[11] = event(b'a "b" c')
    path = raw(tmp_path, *tricky, tail=b'], "distributedInfo": {"rank": 3}}')
    monkeypatch.setattr(bytestream, "PIECE", piece)
    stream = EventStream(path)
    names = [e.name for batch in stream.batches() for e in batch]
    assert names == [f"n{n} }}, {{ " if n != 11 else 'a "b" c' for n in range(20)]
    assert stream.head.distributed is not None
    assert stream.head.distributed.rank == 3
    assert sum(stream.mended.values()) == 1


def test_an_event_without_end_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(eventstream, "MOST_EVENT", 1 << 20)
    with pytest.raises(RecordError, match="one event is longer than 1 MiB"):
        read_trace(raw(tmp_path, event(), event(b"x" * 9_000_000)))


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(bytestream, "BOMB_BYTES", 8 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (32 << 20)))
    with pytest.raises(RecordError, match="unpacks to more than 400 times its size"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "is empty"), (b"  \n ", "is blank"), (b"hello", "is no JSON"),
        (b'{"schema": "1.0.4", "pid": 1, "nodes": [{"id": 1}]}', "PyTorch execution trace"),
        (b'{"version": "2.4", "pg_config": {}, "entries": []}', "flight recorder"),
        (pickle.dumps({"entries": []}), "flight recorder"), (b"SQLite format 3\0" + b"\0" * 100, "Nsight Systems"),
        (b'{"TraceProcessEvent": {}}\n', "Nsight Systems"), (b"PK\x03\x04zip", "zip archive"),
        (b'{"a": 1}', "holds no traceEvents"), (b'{"traceEvents": []}', "holds no event of a host or a device"),
        (b"{broken", "holds no traceEvents"),
    ],
)  # fmt: skip
def test_other_kinds_of_files_are_named(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=kind) as error:
        read_trace(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_bare_array_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(b"\xef\xbb\xbf [" + event() + b"]\n")
    assert read_trace(path).tables["activities"].height == 1


@pytest.mark.parametrize(("written", "name"), [(b"7", "7"), (b"1.5", "1.5"), (b"true", "True"), (b"[]", "[]")])
def test_names_that_are_no_text_are_counted(tmp_path: Path, written: bytes, name: str) -> None:
    numbered = event(b"7", args=b'{"stream": 3, "device": 1}').replace(b'"7"', written)
    path = raw(tmp_path, event(), numbered, event())
    trace = read_trace(path)
    assert trace.tables["activities"].select("name", "stream", "device").rows()[1] == (name, 3, "cuda:1")
    assert "mended 1 event(s) with a name that is no text" in faults(trace)
    with pytest.raises(RecordError, match="a field of an unknown type"):
        read_trace(path, strict=True)


def test_activities_without_name_or_place_are_counted(tmp_path: Path) -> None:
    args = b'{"stream": 7, "device": 0, "correlation": 1}'
    nameless = event(args=args).replace(b'"name": "k", ', b"")
    noted = faults(read_trace(raw(tmp_path, event(), nameless, event(args=args))))
    assert "1 activities have no name, so none of them counts as a collective" in noted
    assert "1 of 3 activities have no device or no stream" in noted
    assert "the launches of 3 of 3 activities are not in the trace" in noted


def test_idling_is_not_explained_where_activities_are_missing(write: Any, make: Any) -> None:
    def events(bad: float) -> list[dict[str, Any]]:
        kernels = [
            part for n in range(8)
            for part in (make.launch(n + 1, 100 * n), make.kernel("k", 100 * n + 20, bad if n == 3 else 30, n + 1))
        ]  # fmt: skip
        return [make.step(1, 0, 1000), *kernels]

    whole, lacking = read_trace(write(events(30))), read_trace(write(events(-30)))
    idled = whole.host_times.group_by("kind").agg(pl.col("duration_ns").sum())
    assert dict(idled.iter_rows()) == {"host": 7 * 50_000, "launch": 8 * 20_000}
    assert lacking.host_times.is_empty()
    assert "why its device idled is not told: 1 activities that are missing may have run on it" in faults(lacking)


def test_launches_that_were_made_before_the_trace_began_are_not_missed(write: Any, make: Any) -> None:
    def noted(*unlaunched: int) -> str:
        kernels = [make.kernel("k", 100 * n, 30, n + 1) for n in range(20)]
        launches = [make.launch(n + 1, 100 * n) for n in range(20) if n not in unlaunched]
        return faults(read_trace(write([*kernels, *launches])))

    assert "launches" not in noted(*range(15))
    assert "launches" not in noted(7, 12)
    assert "the launches of 3 of 20 activities are not in the trace" in noted(0, 1, 7, 12, 13)


def lengths_us(trace: RankTrace) -> list[float]:
    table = trace.tables["activities"]
    return [ns / 1000 for ns in table["end_ns"] - table["start_ns"]]


def test_what_would_outlast_later_ones_of_its_stream_ends_where_the_next_begins(write: Any, make: Any) -> None:
    kernels = [make.kernel("k", 100 * n, 30, n + 1, stream=7 + n % 2) for n in range(8)]
    kernels[2]["dur"] = 5e6
    trace = read_trace(write(kernels))
    assert lengths_us(trace) == [30, 30, 200, *[30] * 5]
    assert "1 activities last beyond the end of a later one of their stream" in faults(trace)
    assert trace.span_ns == (0, 730_000)
    with pytest.raises(RecordError, match="last beyond the end of a later one"):
        read_trace(write(kernels), strict=True)


@pytest.mark.parametrize("dur", [30, 210, 229, 239])
def test_beside_other_streams_and_the_next_of_its_own_anything_may_run(write: Any, make: Any, dur: int) -> None:
    kernels = [make.kernel("k", 100 * n, 30, n + 1, stream=7 + n % 2) for n in range(8)]
    kernels[2]["dur"] = dur  # the next of its stream runs from 200 to 230 us after its start
    other = {**make.kernel("k", 210, 1, 20), "args": {"device": 1, "stream": 7, "correlation": 20}}
    assert lengths_us(read_trace(write([*kernels, other]), strict=True))[2] == dur


def test_kernels_of_one_graph_may_run_side_by_side_but_not_beyond_the_next_launch(write: Any, make: Any) -> None:
    graph = [make.kernel("k", 100 * n, 30, 9) for n in range(4)]
    graph[1]["dur"] = 250
    assert lengths_us(read_trace(write(graph), strict=True)) == [30, 250, 30, 30]
    later = make.kernel("k", 1000, 30, 10)
    assert lengths_us(read_trace(write([*graph, later]), strict=True)) == [30, 250, 30, 30, 30]
    graph[1]["dur"] = 5e6
    assert lengths_us(read_trace(write([*graph, later]))) == [30, 900, 30, 30, 30]


def test_a_thin_one_at_the_end_of_another_is_usual_and_streams_shown_as_one_stay(write: Any, make: Any) -> None:
    thin = [make.kernel("k", 0, 100, 1), make.kernel("memset", 99.5, 0, 2)]
    assert lengths_us(read_trace(write(thin), strict=True)) == [100, 0]
    merged = [make.kernel("k", 100 * n, 30 if n % 2 else 190, n + 1) for n in range(40)]
    assert lengths_us(read_trace(write(merged), strict=True)) == [190, 30] * 20


@pytest.mark.parametrize("kind", ["cpu_op", "user_annotation", "cuda_runtime"])
def test_one_event_far_longer_than_all_else_is_named(tmp_path: Path, kind: str) -> None:
    usual = [event(b"k%d" % n, ts=b"%d" % (10 * n)) for n in range(40)]
    long = event(b"Optimizer.step#SGD.step", ts=b"3", dur=b"5e6").replace(b'"kernel"', b'"%s"' % kind.encode())
    name = "a call of the runtime" if kind == "cuda_runtime" else "Optimizer.step#SGD.step"
    path = raw(tmp_path, *usual, long)
    trace = read_trace(path)
    assert f"mended 1 event(s) with a time far beyond those of all others ({name})" in faults(trace)
    assert trace.span_ns == (0, 395_000)
    assert trace.tables["steps"]["end_ns"].max() == 395_000
    with pytest.raises(RecordError, match="a time far beyond"):
        read_trace(path, strict=True)
    assert "far beyond" not in faults(read_trace(raw(tmp_path, *usual)))


@pytest.mark.parametrize(("ts", "dropped", "noted"), [
    (b"3600000000", True, ""),
    (b"-3600000000", True, ""),
    (b"2000", False, "it is 0.002 s long, and without one event 0.000395 s"),  # late, yet it may be so
    (b"395", False, ""),
])  # fmt: skip
def test_an_activity_far_apart_from_all_else_is_left_out(
    tmp_path: Path, ts: bytes, dropped: bool, noted: str
) -> None:
    trace = read_trace(raw(tmp_path, *[event(b"k%d" % n, ts=b"%d" % (10 * n)) for n in range(40)], event(ts=ts)))
    assert trace.tables["activities"].height == 41 - dropped
    assert json.loads(trace.tables["marks"]["detail"][0])["activities"] == 41
    assert ("dropped 1 event(s) with a time far beyond those of all others (k)" in faults(trace)) == dropped
    assert noted in faults(trace)
    assert ("without one event" in faults(trace)) == bool(noted)


def test_events_that_are_there_twice_are_taken_once(write: Any, make: Any) -> None:
    events = [
        make.step(1, 0, 1000), make.host("nccl:all_reduce", 5, 1, "user_annotation"),
        make.launch(1, 5), make.launch(2, 50),
        make.kernel("k", 10, 30, 1), make.kernel("ncclDevKernel_AllReduce", 60, 30, 2, stream=20),
    ]  # fmt: skip
    path = write([*events, *events])
    once, twice = read_trace(write(events, "once.json")), read_trace(path)
    assert twice.calls.drop("call_id", strict=False).equals(once.calls.drop("call_id", strict=False))
    assert twice.tables["activities"].equals(once.tables["activities"])
    assert "dropped 2 event(s) with all that another says" in faults(twice)
    with pytest.raises(RecordError, match="all that another says"):
        read_trace(path, strict=True)


def test_launches_whose_kernels_are_not_there_leave_idling_unproven(write: Any, make: Any) -> None:
    def trace(*gone: int) -> RankTrace:
        kernels = [make.kernel("k", 100 * n + 20, 30, n + 1) for n in range(20) if n not in gone]
        return read_trace(write([make.step(1, 0, 3000), *(make.launch(n + 1, 100 * n) for n in range(20)), *kernels]))

    whole, last, lacking = trace(), trace(19), trace(3, 4, 5)
    for sound in (whole, last):  # the last may run after the trace has ended
        assert "kernels that were launched" not in faults(sound)
        assert sound.host_times.height
    assert "3 of 20 kernels that were launched are not in the trace" in faults(lacking)
    assert lacking.host_times.is_empty()
    assert json.loads(lacking.tables["marks"]["detail"][0])["activities"] == lacking.tables["activities"].height + 3


@pytest.mark.parametrize("tail", [
    b'], "distributedInfo": {"rank": 5, "world_size": Infinity}, "deviceProperties": [{"id": 0, "name": "X"}]}',
    b'], "distributedInfo": {"rank": 5, "pg": "\\ud83d"}, "deviceProperties": [{"id": 0, "name": "X"}]}',
])  # fmt: skip
def test_damaged_metadata_is_read_as_far_as_it_goes(tmp_path: Path, tail: bytes) -> None:
    path = raw(tmp_path, event(), tail=tail)
    trace = read_trace(path)
    assert (trace.rank, trace.device_name) == (5, "X")
    assert "mended 1 event(s) with metadata that is damaged" in faults(trace)
    with pytest.raises(RecordError, match="metadata that cannot be read"):
        read_trace(path, strict=True)


def test_a_host_event_beyond_repair_leaves_idling_proven(tmp_path: Path) -> None:
    lost = event(b"aten::mm", ts=b"NaN").replace(b'"kernel"', b'"cpu_op"')
    trace = read_trace(raw(tmp_path, event(), lost))
    assert "dropped 1 event(s) with malformed JSON" in faults(trace)
    assert json.loads(trace.tables["marks"]["detail"][0])["activities"] == 1
