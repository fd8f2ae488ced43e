"""Repetition on a pretended GPU: what is captured is replayed, what is not is called, and each is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from magneton_dist.energy.replay.loops import DeviceLoop, Loop, loop_on

CALL_S = 1e-4


class Device:
    """Counts what it is given; a captured call takes no time until it is replayed."""

    def __init__(self, captures: bool) -> None:
        self.captures, self.capturing = captures, False
        self.calls = self.in_graph = self.waiting = self.most_waiting = 0

    def call(self) -> None:
        if self.capturing:
            if not self.captures:
                raise RuntimeError("operation not permitted when stream is capturing\nmore about it")
            self.in_graph += 1
        else:
            self.calls += 1
            time.sleep(CALL_S)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Device:
    made = Device(request.param)

    class Graph:
        def replay(self) -> None:
            made.calls += made.in_graph
            time.sleep(CALL_S * made.in_graph)

    class Event:
        def record(self) -> None:
            made.waiting += 1
            made.most_waiting = max(made.most_waiting, made.waiting)

        def synchronize(self) -> None:
            made.waiting -= 1

    @contextmanager
    def graph(_: object) -> Iterator[None]:
        made.capturing = True
        try:
            yield
        finally:
            made.capturing = False

    for name, stand_in in (("CUDAGraph", Graph), ("Event", Event), ("graph", graph)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


@pytest.mark.parametrize("device", [True], indirect=True)
def test_a_graph_is_replayed_and_every_repetition_counted(device: Device) -> None:
    loop = loop_on("cuda", device.call)
    assert isinstance(loop, DeviceLoop)
    assert loop.how == f"CUDA graph of {device.in_graph}"
    assert 10 <= device.in_graph <= 200  # of about 10 ms
    before = device.calls
    start_ns, end_ns, rounds = loop.run(0.1)
    assert rounds == device.calls - before
    assert end_ns - start_ns >= 0.1e9
    assert device.most_waiting <= 5  # the queue does not run away


@pytest.mark.parametrize("device", [False], indirect=True)
def test_what_does_not_capture_is_called_and_the_reason_kept(device: Device) -> None:
    loop = loop_on("cuda", device.call)
    assert loop.how == "loop, as it does not capture: operation not permitted when stream is capturing"
    before = device.calls
    _, _, rounds = loop.run(0.05)
    assert rounds == device.calls - before > 0


def test_on_a_cpu_it_is_a_loop() -> None:
    calls = []
    loop = loop_on("cpu", lambda: calls.append(None))
    assert isinstance(loop, Loop)
    before = len(calls)
    start_ns, end_ns, rounds = loop.run(0.02)
    assert rounds == len(calls) - before
    assert end_ns - start_ns >= 0.02e9
