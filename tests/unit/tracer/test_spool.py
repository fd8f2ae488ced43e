import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from magneton_dist.tracer import spool as spool_module
from magneton_dist.tracer.spool import Spool


@pytest.fixture(autouse=True)
def _slow_thread(monkeypatch: pytest.MonkeyPatch):
    """Tests flush by themselves."""
    monkeypatch.setattr(spool_module, "PERIOD_S", 60.0)


def read(folder: Path) -> list[list[object]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_each_flush_closes_a_segment(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    spool.put("mark", "a", 1, None)
    spool.flush()
    spool.flush()  # nothing new: no empty segment
    spool.put("mark", "b", 2, None)
    spool.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.jsonl", "000001.jsonl"]
    assert read(tmp_path) == [["mark", "a", 1, None], ["mark", "b", 2, None]]


def test_the_thread_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spool_module, "PERIOD_S", 0.02)
    spool = Spool(str(tmp_path), 1e9)
    spool.put("stamp", 1, 2, 3)
    deadline = time.monotonic() + 5
    while not list(tmp_path.glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read(tmp_path) == [["stamp", 1, 2, 3]]
    spool.close()


def test_strings_that_look_like_the_seam_between_rows(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    hostile = ['],["', '"],["stamp",1,2,3]', "line\nbreak", "snow ☃ \udce9", "\\"]
    for text in hostile:
        spool.put("fault", text, text)
        spool.put("stack", 0, [[text, 1, text], [text, 2, "f"]])
    spool.close()
    rows = read(tmp_path)
    assert [row[1] for row in rows if row[0] == "fault"] == hostile
    assert [row[2] for row in rows if row[0] == "stack"] == [[[t, 1, t], [t, 2, "f"]] for t in hostile]


def test_many_rows_keep_their_order_within_a_kind(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    for i in range(1000):
        spool.put("stamp", i, 0, 0)
        spool.put("value", i, [], [])
    spool.close()
    rows = read(tmp_path)
    for kind in ("stamp", "value"):
        assert [row[1] for row in rows if row[0] == kind] == list(range(1000))


def test_nothing_put_during_a_flush_is_lost(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)

    def put(thread: int) -> None:
        for i in range(3000):
            spool.put("stamp", thread, i, 0)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        spool.flush()
    spool.close()
    rows = read(tmp_path)
    for n in range(3):
        assert [row[2] for row in rows if row[1] == n] == list(range(3000))


def test_a_fault_is_said_once_per_place(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    for _ in range(3):
        spool.fault("here", ValueError("a\n  b"))
    spool.fault("there", "text")
    spool.close()
    assert read(tmp_path) == [["fault", "here", "ValueError: a b"], ["fault", "there", "text"]]


def test_a_disk_that_refuses_is_survived_and_said(tmp_path: Path):
    folder = tmp_path / "segments"
    folder.mkdir()
    spool = Spool(str(folder), 1e9)
    shutil.rmtree(folder)
    spool.put("mark", "lost", 1, None)
    spool.flush()
    spool.put("mark", "lost, too", 2, None)
    spool.flush()
    folder.mkdir()  # there is room again
    spool.put("mark", "kept", 3, None)
    spool.close()
    rows = read(folder)
    assert ["mark", "kept", 3, None] in rows
    (fault,) = [row for row in rows if row[0] == "fault"]
    assert fault[1] == "spool"
    assert "FileNotFoundError" in str(fault[2])


def test_a_source_that_fails_does_not_stop_the_rows(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    spool.before_flush.append(lambda: 1 / 0)
    spool.put("mark", "a", 1, None)
    spool.close()
    rows = read(tmp_path)
    assert ["mark", "a", 1, None] in rows
    assert any(row[0] == "fault" for row in rows)


def test_what_comes_before_a_flush_stands_before_what_was_put(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    spool.before_flush.append(lambda: spool.put_first(("mark", "in flight", 0, None)))
    spool.put("mark", "finished", 1, None)
    spool.close()
    assert [row[1] for row in read(tmp_path)] == ["in flight", "finished"]


def test_in_the_dark_nothing_is_written(tmp_path: Path):
    spool = Spool(str(tmp_path), 1e9)
    spool.put("mark", "parent's", 1, None)
    spool.darken()
    spool.put("mark", "child's", 2, None)
    spool.flush()
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_the_cap_is_said_and_a_kill_after_it_loses_little(tmp_path: Path):
    spool = Spool(str(tmp_path), 10_000)
    for call in range(300):
        spool.put("collective", call, "0", 2, 0, call, "allreduce_", "ddp", 8, "f", None, None, 0, 10, 10, 17, 3)
    spool.flush()
    for call in range(300, 1300):
        spool.put("collective", call, "0", 2, 0, call, "allreduce_", "ddp", 8, "f", None, None, 0, 10, 10, 17, 3)
    spool.flush()
    time.sleep(0.01)
    spool.flush()
    rows = read(tmp_path)  # without close: as a killed process leaves it
    assert [row[1] for row in rows if row[0] == "fault"] == ["spool cap"]
    written = [row for row in rows if row[0] == "collective"]
    sums = [row for row in rows if row[0] == "collective_sum"]
    left_out = 1300 - len(written)
    assert left_out > 800
    assert sum(row[5] for row in sums) == left_out  # type: ignore[misc]
    assert sum(row[6] for row in sums) == 8 * left_out  # type: ignore[misc]
    assert sum(row[7] for row in sums) == 7 * left_out  # type: ignore[misc]
    spool.darken()
