"""A load whose changes are known to the millisecond, to see what a meter makes of it.

It runs in a process of its own: only a process that ends gives its CUDA context back. Parent and child talk in
lines of JSON; both read the same monotonic clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from magneton_dist.errors import MeterError

NO_BOOST = "CUDA_DISABLE_PERF_BOOST"  # driver 580 and newer: an idle context lets the clocks drop
_SIZE = {"cuda": 4096, "cpu": 512}  # of the matrices: each product takes about a millisecond
_SPIN_CYCLES = 10_000_000  # 5 to 10 ms
_END_S = 2.0  # to end by itself


class Load(Protocol):
    """What `calibrate` asks of a load."""

    def start(self, boost: bool) -> None:
        """Hold the device, idle; `boost` False: with the driver's performance boost disabled."""
        ...

    def spin(self, seconds: float) -> None:
        """Keep a kernel spinning that moves no data."""
        ...

    def pulses(self, lengths_s: Sequence[float]) -> list[float]:
        """Be busy, idle, busy, ... for these times; returns when each began and the last ended, monotonic s."""
        ...

    def stop(self) -> None:
        """Let the device go; harmless when repeated."""
        ...


class TorchLoad:
    """The load in torch.

    Args:
        device: GPU UUID, or ``cpu``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._process: subprocess.Popen[str] | None = None

    def start(self, boost: bool) -> None:
        """Start the process; returns when it holds its context."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop(NO_BOOST, None)
        if not boost:
            environment[NO_BOOST] = "1"
        if self._device != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = self._device
        kind = "cpu" if self._device == "cpu" else "cuda"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "magneton_dist.meters.load", kind],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def spin(self, seconds: float) -> None:
        """See `Load`."""
        self._ask("spin", [seconds])

    def pulses(self, lengths_s: Sequence[float]) -> list[float]:
        """See `Load`."""
        return self._ask("pulses", lengths_s)

    def stop(self) -> None:
        """End the process; killed when it does not end by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=_END_S)  # closes its stdin: it ends with what it is doing
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _ask(self, what: str, lengths_s: Sequence[float]) -> list[float]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([what, list(lengths_s)]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_answer` says why
        return self._answer()

    def _answer(self) -> list[float]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            process, self._process = self._process, None
            errors = process.communicate()[1].strip().splitlines()
            what = f"the load ended: {errors[-1] if errors else f'exit code {process.returncode}'}"
            raise MeterError(what, where=f"load on {self._device}", do="does torch work on this device?")
        return [float(time_s) for time_s in json.loads(line)]


def _serve(kind: str) -> None:
    """The child: do what each line asks, answer with times."""
    import torch

    work, rest, spin = _doings(torch, kind)
    work()  # allocates, compiles, creates the context
    rest()
    print("[]", flush=True)
    for line in sys.stdin:
        what, lengths_s = json.loads(line)
        edges_s = []
        for index, length_s in enumerate(lengths_s):
            edges_s.append(time.monotonic())
            if index % 2:
                time.sleep(length_s)
                continue
            while time.monotonic() - edges_s[-1] < length_s:
                (spin if what == "spin" else work)()
            rest()
        edges_s.append(time.monotonic())
        print(json.dumps(edges_s), flush=True)


def _doings(torch: Any, kind: str) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """Some work, the end of it, and some spinning."""
    matrix = torch.ones(_SIZE[kind], _SIZE[kind], device=kind, dtype=torch.bfloat16 if kind == "cuda" else None)
    out = torch.empty_like(matrix)
    if kind == "cpu":
        return (lambda: torch.mm(matrix, matrix, out=out)), (lambda: None), (lambda: None)
    stream = torch.cuda.current_stream()

    def work() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix, out=out)
        stream.synchronize()

    def spin() -> None:
        torch.cuda._sleep(_SPIN_CYCLES)
        stream.synchronize()

    return work, stream.synchronize, spin


if __name__ == "__main__":
    _serve(sys.argv[1])
