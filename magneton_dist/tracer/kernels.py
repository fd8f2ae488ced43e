"""What runs on the GPU in some steps; a trace of each is left beside the spool's segments.

By torch.profiler (Kineto), or by CUPTI's own records. Both wait for the device when a step's capture stops, so this
is on only where the configuration asks for it. Only device activities and their launches are asked for, no stacks;
operators only in steps whose operators are recorded: each is made known under the time at which it was called, and
kernels meet it by that external id. The trace is read outside the job; the `kernel_trace` mark says which file it is,
when it began, and how far the clock of its times is ahead of the monotonic one.
Where the job has a profiler of its own, capturing ends for good when that one begins, and a fault says so.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager
from typing import Any, Callable, Protocol

import torch

from magneton_dist.tracer.profilers import OtherProfilers
from magneton_dist.tracer.rows import OPERATOR
from magneton_dist.tracer.spool import Spool

MARK = "kernel_trace"

Operator = Callable[[int], AbstractContextManager[None]]


class Source(Protocol):
    """What captures."""

    missing: dict[str, str]  # what it cannot tell of kernels, and why
    operator: Operator | None  # how an operator is made known to it; None where that cannot be or is not wanted

    def start(self, operators: bool = False) -> None:
        """Capture from here on; with `operators`, also which of them launched what."""

    def stop(self, path: str) -> int:
        """Wait for the device, write a trace in Kineto's form; returns how far its clock is ahead, ns."""

    def drop(self) -> None:
        """Capture no more; what was captured is lost."""


class Kineto:
    """torch.profiler."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.operator: Operator | None = None
        self._profiler: Any = None

    def start(self, operators: bool = False) -> None:
        """See `Source`. Only with the operators on the host does it give kernels external ids."""
        named = getattr(torch._C._profiler, "_RecordFunctionFast", None) if operators else None
        if operators and named is None:
            self.missing["operators"] = "this torch's profiler cannot be told quickly enough which are called"
        kinds = torch.profiler.ProfilerActivity
        self.operator = (lambda called_ns: named(f"{OPERATOR}{called_ns}")) if named else None
        self._profiler = torch.profiler.profile(activities=[kinds.CUDA] + ([kinds.CPU] if self.operator else []))
        self._profiler.start()

    def stop(self, path: str) -> int:
        """See `Source`; its times are of the wall clock."""
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        ahead_ns = _wall_ahead_ns()
        profiler.export_chrome_trace(path)
        return ahead_ns

    def drop(self) -> None:
        """See `Source`."""
        profiler, self._profiler = self._profiler, None
        profiler.stop()


class KernelCapture:
    """Captures the kernels of single steps.

    Args:
        spool: for marks and faults.
        folder: of the spool's segments.
        every: first steps of this many are captured ...
        steps: ... so many of them.
        by: ``kineto`` or ``cupti``; where CUPTI cannot be used, Kineto is, and a fault says why.
    """

    def __init__(self, spool: Spool, folder: str, every: int, steps: int, by: str = "kineto") -> None:
        self._spool, self._folder = spool, folder
        self._every, self._steps, self._by = every, steps, by
        self._source: Source | None = None
        self._on = False
        self._start_ns = 0
        self._traces = 0
        self._broken = False
        self._said: set[str] = set()  # what a source cannot tell
        self._others = OtherProfilers(self._give_way)

    def wanted(self, measured: int) -> bool:
        """Is the step that comes as number `measured` after the warm-up one of them?"""
        return not self._broken and measured % self._every < self._steps

    @property
    def operator(self) -> Operator | None:
        """How an operator is made known, so that what it launches is known to be its own; None where it cannot be."""
        return self._source.operator if self._on and self._source is not None else None

    def start(self, operators: bool = False) -> bool:
        """Capture from here on, with `operators` also which of them launched what; False when that cannot be."""
        if self._broken:
            return False
        if not torch.cuda.is_initialized():
            return self._refuse("no GPU is in use: no kernels are captured")
        if self._others.active:
            return self._refuse("another profiler is on: no kernels are captured from here on")
        try:
            with self._others.ours():
                if self._by == "cupti":
                    self._on = self._start_cupti(operators)
                if not self._on:
                    self._source = self._source or Kineto()
                    self._source.start(operators)
                    self._on = True
        except Exception as error:
            return self._refuse(f"no kernels are captured: {error}")
        self._start_ns = time.monotonic_ns()
        return True

    def stop(self, step: int) -> None:
        """Leave the trace of what ran since `start`, as of step `step`; does nothing when none is captured."""
        if not self._on or self._source is None:
            return
        operators, self._on = self.operator is not None, False
        try:
            self._traces += 1  # steps may be numbered anew: not by them
            name = f"kernels-{self._traces:06d}.json"
            path = os.path.join(self._folder, name)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with self._others.ours():
                ahead_ns = self._source.stop(path)
            detail = {
                "file": name, "step": step, "start_ns": self._start_ns, "wall_ahead_ns": ahead_ns,
                "operators": operators,
            }  # fmt: skip
            self._spool.put("mark", MARK, time.monotonic_ns(), json.dumps(detail))
            self._say_missing(self._source)
        except Exception as error:
            if self._by == "cupti":
                self._without_cupti(f"a trace of kernels is lost: {error}")
            else:
                self._refuse(f"a trace of kernels is lost: {error}")

    def _start_cupti(self, operators: bool) -> bool:
        """CUPTI's records; where they cannot be had, the profiler's, from now on."""
        from magneton_dist.tracer.cupti import Cupti, CuptiError

        try:
            self._source = self._source or Cupti()
            self._source.start(operators)
        except CuptiError as error:
            self._without_cupti(str(error))
            return False
        return True

    def _without_cupti(self, why: str) -> None:
        self._by, self._source = "kineto", None
        self._spool.fault("kernels by cupti", f"{why}: torch.profiler captures them instead")

    def _say_missing(self, source: Source) -> None:
        for what, why in source.missing.items():
            if what not in self._said:
                self._said.add(what)
                self._spool.fault("kernels", f"no {what}: {why}")

    def _give_way(self) -> None:
        """Another profiler is about to begin; for good, as torch's may crash when they take turns in a process."""
        source, on, self._on = self._source, self._on, False
        if self._broken:
            return
        self._refuse("another profiler began: no kernels are captured from here on")
        if not on or source is None:
            return
        try:
            with self._others.ours():
                source.drop()
        except Exception as error:
            self._spool.fault("kernels of the step in which another profiler began", error)

    def _refuse(self, why: str) -> bool:
        self._broken = True
        self._spool.fault("kernels", why)
        return False


def _wall_ahead_ns() -> int:
    """Wall clock less monotonic clock: the tightest of a few readings."""
    best = None
    for _ in range(5):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = after - before, wall - (before + after) // 2
    assert best is not None
    return best[1]
