"""Device times against a make-believe GPU: one clock, streams that finish when told to."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from magneton_dist.tracer import device_times
from magneton_dist.tracer.device_times import DeviceTimes
from magneton_dist.tracer.rows import FIELDS

GROUP = 1 + FIELDS["collective"].index("group")
SKEW_NS = 7_000_000_000  # the device's clock counts from another moment than the host's


class Gpu:
    """Events happen at `now_ns` of the device when nothing is running, else when `run_ns` says."""

    def __init__(self) -> None:
        self.at_ns: int | None = None  # a busy stream reaches what is put in at this device time
        self.capturing = False
        self.waited: list[Event] = []

    def now_ns(self) -> int:
        return time.monotonic_ns() + SKEW_NS


class Event:
    gpu: Gpu
    asked = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self, stream: Any = None) -> None:
        idle = stream is not None or self.gpu.at_ns is None
        self.ns = self.gpu.now_ns() if idle else self.gpu.at_ns

    def query(self) -> bool:
        Event.asked += 1
        return self.gpu.now_ns() >= self.ns

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return (other.ns - self.ns) / 1e6

    def synchronize(self) -> None:
        pytest.fail("nothing may wait for the device")


class Graph:
    def capture_begin(self) -> None:
        pass

    def capture_end(self) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Event.gpu = Gpu()
    for name, value in {
        "current_device": lambda: 0, "Stream": lambda device: "aside", "Event": Event, "CUDAGraph": Graph,
        "is_current_stream_capturing": lambda: made.capturing,
        "synchronize": lambda: pytest.fail("nothing may wait for the device"),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    return made


@pytest.fixture
def finished() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def times(gpu: Gpu, rows: Any, finished: list[tuple[Any, ...]]) -> DeviceTimes:
    return DeviceTimes(rows, lambda *call: finished.append(call), lambda *call: finished.append(call))


def row(group: str = "0") -> list[Any]:
    made: list[Any] = [None] * (1 + len(FIELDS["collective"]))
    made[GROUP] = group
    return made


def run(gpu: Gpu, times: DeviceTimes, start_ns: int, end_ns: int, of: list[Any], payload: Any = ()) -> None:
    """A collective between two moments of the host's clock."""
    gpu.at_ns = start_ns + SKEW_NS
    call = times.issued(of, payload, shadow=True)
    assert call is not None
    gpu.at_ns = end_ns + SKEW_NS
    times.ordered(call)
    gpu.at_ns = None


def test_device_times_become_host_times(gpu: Gpu, times: DeviceTimes, finished: list[Any]):
    now = time.monotonic_ns()
    mine = row()
    run(gpu, times, now - 3_000_000, now - 1_000_000, mine)
    times.resolve()
    ((found, start, end, zero),) = finished
    assert found is mine
    assert zero is None
    # exact up to the half of a spin around the anchor
    assert abs(start - (now - 3_000_000)) < 150_000
    assert end - start == pytest.approx(2_000_000, abs=1000)


def test_without_an_anchor_a_call_is_given_up_and_leaves_nothing(
    gpu: Gpu, times: DeviceTimes, finished: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(times, "_anchor", None)
    monkeypatch.setattr(times, "_new_anchor", lambda: None)
    now, slots = time.monotonic_ns(), len(times._free_slots)
    mine = row()
    run(gpu, times, now - 3_000_000, now - 1_000_000, mine, [torch.ones(4)])
    times.resolve()
    ((found, why),) = finished
    assert found is mine
    assert "host and device" in why
    assert len(times._free_slots) == slots


def test_what_has_not_ended_is_asked_again_later(gpu: Gpu, times: DeviceTimes, finished: list[Any]):
    now = time.monotonic_ns()
    run(gpu, times, now, now + 30_000_000, row())
    times.resolve()
    assert finished == []
    time.sleep(0.04)
    times.resolve()
    assert len(finished) == 1


def test_one_communicator_runs_one_after_the_other(gpu: Gpu, times: DeviceTimes, finished: list[Any]):
    now = time.monotonic_ns() - 20_000_000
    run(gpu, times, now, now + 5_000_000, row("0"))
    run(gpu, times, now + 1_000_000, now + 6_000_000, row("0"))  # issued while the first one ran
    run(gpu, times, now + 1_000_000, now + 6_000_000, row("1"))
    times.resolve()
    (_, _, first_end, _), (_, second, _, _), (_, other, _, _) = finished
    assert second == first_end
    assert other < first_end


def test_zero_payloads(gpu: Gpu, times: DeviceTimes, finished: list[Any]):
    now = time.monotonic_ns() - 1_000_000
    for payload in ([torch.zeros(9)], [torch.zeros(9), torch.ones(1)], []):
        run(gpu, times, now, now, row(), payload)
    times.resolve()
    assert [call[3] for call in finished] == [True, False, None]


def test_outside_join_only_some_payloads_are_looked_at(gpu: Gpu, times: DeviceTimes, finished: list[Any]):
    for _ in range(2 * device_times._LOOK_EVERY):
        call = times.issued(row(), [torch.zeros(2)], shadow=False)
        assert call is not None
        times.ordered(call)
    times.resolve()
    assert [call[3] for call in finished].count(True) == 2


def test_nothing_under_capture(gpu: Gpu, times: DeviceTimes, rows: Any, finished: list[Any]):
    now = time.monotonic_ns() - 1_000_000
    run(gpu, times, now, now, row())
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    gpu.capturing = True
    assert times.issued(row(), [], shadow=True) is None
    Event.asked = 0
    times.resolve()
    assert (Event.asked, finished) == (0, [])  # asking an event from another thread would break the capture
    gpu.capturing = False
    graph.capture_end()
    times.resolve()
    assert len(finished) == 1
    assert [where for where, _ in rows.of("fault")] == ["collectives capture"]


def test_events_are_used_again(gpu: Gpu, times: DeviceTimes, finished: list[Any], monkeypatch: pytest.MonkeyPatch):
    run(gpu, times, 0, 0, row())
    times.resolve()
    made = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **k: made.append(1) or Event(**k))
    for _ in range(5):
        run(gpu, times, 0, 0, row())
        times.resolve()
    assert len(finished) == 6
    assert len(made) <= 5 * device_times._ANCHOR_TRIES  # anchors only
