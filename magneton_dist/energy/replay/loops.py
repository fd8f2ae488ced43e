"""Repetition back to back: as a CUDA graph where it captures, by a loop otherwise. Needs torch alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

CHUNK_S = 0.002  # of a loop between two looks at the clock
GRAPH_S = 0.01  # of one launch of a graph
_AHEAD = 4  # launches that may wait on the device
_WARM = 3
_MOST = 4096  # repetitions in one graph

Body = Callable[[], object]


class Loop:
    """`body` on the CPU."""

    how = "loop"

    def __init__(self, body: Body) -> None:
        self._body = body
        self._chunk = _chunk(body, lambda: None, CHUNK_S)

    def run(self, seconds: float) -> tuple[int, int, int]:
        """Repeat for about so long; returns begin and end (monotonic ns) and the number of repetitions."""
        body, chunk, rounds = self._body, range(self._chunk), 0
        start_ns = end_ns = time.monotonic_ns()
        until_ns = start_ns + round(seconds * 1e9)
        while end_ns < until_ns:
            for _ in chunk:
                body()
            rounds += len(chunk)
            end_ns = time.monotonic_ns()
        return start_ns, end_ns, rounds


class DeviceLoop:
    """`body` on the current GPU; `how` says whether a CUDA graph holds it, and why not."""

    def __init__(self, body: Body) -> None:
        for _ in range(_WARM):
            body()
        torch.cuda.synchronize()
        repeat = min(_MOST, _chunk(body, torch.cuda.synchronize, GRAPH_S))
        self._chunk = repeat
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(repeat):
                    body()
        except Exception as error:  # noqa: BLE001 - whatever an operator does not allow in a capture
            torch.cuda.synchronize()
            self.how = f"loop, as it does not capture: {str(error).splitlines()[0] if str(error) else type(error)}"
            self._launch: Body = lambda: [body() for _ in range(repeat)]
        else:
            self.how = f"CUDA graph of {repeat}"
            self._launch = graph.replay

    def run(self, seconds: float) -> tuple[int, int, int]:
        """As `Loop.run`; over when the device has done it."""
        rounds, ahead = 0, list[Any]()
        torch.cuda.synchronize()
        start_ns = time.monotonic_ns()
        until_ns = start_ns + round(seconds * 1e9)
        while time.monotonic_ns() < until_ns:
            self._launch()
            rounds += self._chunk
            event = torch.cuda.Event()
            event.record()
            ahead.append(event)
            if len(ahead) > _AHEAD:
                ahead.pop(0).synchronize()
        torch.cuda.synchronize()
        return start_ns, time.monotonic_ns(), rounds


def loop_on(device: str, body: Body) -> Loop | DeviceLoop:
    """The loop for this kind of device."""
    return Loop(body) if device == "cpu" else DeviceLoop(body)


def _chunk(body: Body, finish: Callable[[], object], seconds: float) -> int:
    """How many repetitions take about so long."""
    repeat = 1
    while True:
        started = time.perf_counter()
        for _ in range(repeat):
            body()
        finish()
        took_s = time.perf_counter() - started
        if took_s >= seconds / 4:
            return max(1, round(repeat * seconds / took_s))
        repeat *= 2
