import os
import threading
import time
from pathlib import Path

import pytest

from magneton_dist.tracer.stamps import Stamps

SLACK_NS = 200_000


def schedstat_delay_ns() -> int:
    return int(Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text().split()[1])


def test_a_busy_thread_uses_cpu_and_a_sleeping_one_does_not(rows):
    stamps = Stamps(rows)
    stamps.stamp()
    time.sleep(0.05)
    stamps.stamp()
    end = time.thread_time() + 0.03
    while time.thread_time() < end:
        pass
    stamps.stamp()
    (t0, cpu0, _), (t1, cpu1, _), (t2, cpu2, _) = rows.of("stamp")
    assert t0 < t1 < t2
    assert cpu1 - cpu0 < 5_000_000 <= 50_000_000 <= t1 - t0
    assert 29_000_000 < cpu2 - cpu1 <= t2 - t1


def test_a_stamp_of_a_moment_ago_has_its_time_and_counters_read_since(rows):
    stamps = Stamps(rows)
    issued = time.monotonic_ns()
    before = time.thread_time_ns()
    assert stamps.stamp(issued) == issued
    ((t, cpu, _),) = rows.of("stamp")
    assert t == issued
    assert before <= cpu <= time.thread_time_ns()


def test_the_delay_is_the_schedulers_and_at_most_200_us_behind(rows):
    stamps = Stamps(rows)
    for _ in range(300):
        before = schedstat_delay_ns()
        stamps.stamp()
        after = schedstat_delay_ns()
        delay = rows.of("stamp")[-1][2]
        assert before - SLACK_NS <= delay <= after
        sum(range(2000))


def test_other_threads_stamp_the_main_threads_clock(rows):
    stamps = Stamps(rows)

    def spin_and_stamp() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        stamps.stamp()

    stamps.stamp()
    thread = threading.Thread(target=spin_and_stamp)
    thread.start()
    thread.join()
    (_, cpu0, _), (_, cpu1, _) = rows.of("stamp")
    assert cpu1 - cpu0 < 25_000_000


def test_a_closed_descriptor_makes_the_delay_unknown(rows):
    stamps = Stamps(rows)
    stamps.stamp()
    os.close(stamps._schedstat)  # as a job does that becomes a daemon
    time.sleep(0.001)
    stamps.stamp()
    time.sleep(0.001)
    stamps.stamp()
    assert rows.of("stamp")[0][2] is not None
    assert [row[2] for row in rows.of("stamp")[1:]] == [None, None]


def test_without_scheduler_statistics_the_delay_is_unknown(rows, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError("schedstat")))
    stamps = Stamps(rows)
    stamps.stamp()
    assert rows.of("stamp")[0][2] is None
    assert [where for where, _ in rows.of("fault")] == ["stamps"]
