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
    trace = read_trace(raw(tmp_path, event(), event(ts=b"1x"), event(ts=b"20")))
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
    assert "1 event(s) on the device have no name, so none of them counts as a collective" in noted
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


def test_a_host_event_beyond_repair_leaves_idling_proven(write: Any, make: Any) -> None:
    kernels = [part for n in (1, 2) for part in (make.launch(n, 100 * n), make.kernel("k", 100 * n + 20, 30, n))]
    path = write([make.step(1, 0, 1000), *kernels, make.host("aten::mm", 424242, 1)])
    torn = path.read_bytes().replace(b"424242", b"42x42")
    for category, proven in ((b"cpu_op", True), (b"ac2g", True), (b"Kernel", False)):
        path.write_bytes(torn.replace(b"cpu_op", category))
        trace = read_trace(path)
        assert "dropped 1 event(s) with malformed JSON" in faults(trace)
        assert trace.tables["activities"].height == 2
        assert (trace.host_times.height > 0) == proven


def test_arguments_that_are_no_numbers_are_left_out_of_an_event(tmp_path: Path) -> None:
    trace = read_trace(raw(tmp_path, event(), event(b"nan", args=b'{"device": 0, "stream": 7, "x": [NaN, -Infinity]}')))
    assert trace.tables["activities"]["name"].to_list() == ["k", "nan"]
    assert "mended 1 event(s) with malformed JSON" in faults(trace)
    lost = read_trace(raw(tmp_path, event(), event(ts=b"NaN")))
    assert "dropped 1 event(s) with times that are no numbers" in faults(lost)
