"""The processes that repeat, as seen by who measures: one for an operator, one for each rank of a collective."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from magneton_dist.energy.replay.protocol import Span
from magneton_dist.errors import InputError, MeterError

_SLOW_S = 120.0  # to start, and to make something
_END_S = 2.0  # to end by themselves, all of them
_OVER_S = 60.0  # longer than asked for


class Bench:
    """Worker processes that do the same things at the same time.

    Args:
        devices: ``cpu`` or the GPU's UUID, of each.
        environment: variables of the job that decide which kernels run.
        backend: they form a process group with this one; empty: they know nothing of each other.

    Raises:
        MeterError: a process does not start, or ends.
    """

    def __init__(
        self, devices: Sequence[str], environment: Mapping[str, str] | None = None, *, backend: str = ""
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="magneton-dist-replay-")
        try:
            for rank, device in enumerate(devices):
                with self._said(rank).open("wb") as said:
                    self.processes.append(_start(device, environment or {}, said))
            for rank in range(len(devices)):
                self._answer(rank, time.monotonic() + _SLOW_S)
            if backend:
                meet = {"backend": backend, "rendezvous": str(Path(self._folder.name) / "meet"), "size": len(devices)}
                self._ask_each([{"do": "join", "with": {**meet, "rank": rank}} for rank in range(len(devices))])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have every process do it; returns the first one's answer.

        Raises:
            InputError: one of them cannot.
            MeterError: one of them has ended, or does not answer.
        """
        return self._ask_each([{"do": do, "with": arguments}] * len(self.processes))[0]

    def run(self, seconds: float, bare: bool = False) -> Span:
        """Repeat for about so long, on all devices.

        Raises:
            MeterError: ranks did not do the same number of repetitions.
        """
        question = {"do": "run", "with": {"seconds": seconds, "bare": bare}}
        spans = self._ask_each([question] * len(self.processes), seconds + _OVER_S)
        rounds = {span["rounds"] for span in spans}
        if len(rounds) > 1:
            raise MeterError(f"ranks repeated {sorted(rounds)} times", where="replay", do="report this as a defect")
        # steady is what all of them were in
        return Span(max(s["start_ns"] for s in spans), min(s["end_ns"] for s in spans), rounds.pop())

    def dismiss(self) -> None:
        """Let the processes end, without waiting for it; `close` follows."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()

    def close(self) -> None:
        """End the processes; harmless when repeated."""
        self.dismiss()
        until_s = time.monotonic() + _END_S
        for process in self.processes:
            try:
                process.wait(timeout=max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.processes = []
        self._folder.cleanup()

    def _ask_each(self, questions: Sequence[Mapping[str, Any]], within_s: float = _SLOW_S) -> list[dict[str, Any]]:
        for process, question in zip(self.processes, questions, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # `_answer` says why
        until_s = time.monotonic() + within_s
        answers = [self._answer(rank, until_s) for rank in range(len(self.processes))]
        failed = next((answer["error"] for answer in answers if "error" in answer), None)
        if failed is not None:
            raise InputError(failed)
        return answers

    def _answer(self, rank: int, until_s: float) -> dict[str, Any]:
        process = self.processes[rank]
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))
        line = process.stdout.readline() if ready else b""
        if not line:
            said = self._last_words(rank) if ready else "does not answer"
            self.close()
            raise MeterError(f"process {rank} {said}", where="replay", do="does torch work on this device?")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said(self, rank: int) -> Path:
        return Path(self._folder.name) / f"said.{rank}"

    def _last_words(self, rank: int) -> str:
        try:
            self.processes[rank].wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its answers"
        said = self._said(rank).read_text("utf-8", "replace").strip().splitlines()
        return f"ended: {said[-1] if said else f'exit code {self.processes[rank].returncode}'}"


class OneArm:
    """What a bench repeats, or only what puts its inputs back, as an arm of a measurement."""

    def __init__(self, bench: Bench, bare: bool = False) -> None:
        self._bench, self._bare = bench, bare

    def run(self, seconds: float) -> Span:
        """See `protocol.Arm`."""
        return self._bench.run(seconds, self._bare)


def _start(device: str, environment: Mapping[str, str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    everything = {**os.environ, **environment}
    if device != "cpu":
        everything["CUDA_VISIBLE_DEVICES"] = device
    kind = "cpu" if device == "cpu" else "cuda"
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "magneton_dist.energy.replay.worker", kind],
        env=everything, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0,
    )  # fmt: skip
