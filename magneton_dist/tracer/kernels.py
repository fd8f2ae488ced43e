"""What runs on the GPU in some steps, by torch.profiler (Kineto); its trace is left beside the spool's segments.

The profiler waits for the device when it stops, so this is on only where the configuration asks for it. Only device
activities are asked for: no operators, no stacks. The trace is read outside the job; the `kernel_trace` mark says
which file it is, when it began, and how far the wall clock, which Kineto uses, is ahead of the monotonic one.
CUPTI has one subscriber: where another profiler is active, the step is left alone and a fault says so.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

from magneton_dist.tracer.spool import Spool

MARK = "kernel_trace"


class KernelCapture:
    """Captures the kernels of single steps.

    Args:
        spool: for marks and faults.
        folder: of the spool's segments.
        every: first steps of this many are captured ...
        steps: ... so many of them.
    """

    def __init__(self, spool: Spool, folder: str, every: int, steps: int) -> None:
        self._spool, self._folder = spool, folder
        self._every, self._steps = every, steps
        self._profiler: Any = None
        self._start_ns = 0
        self._broken = False

    def wanted(self, measured: int) -> bool:
        """Is the step that comes as number `measured` after the warm-up one of them?"""
        return not self._broken and measured % self._every < self._steps

    def start(self) -> bool:
        """Capture from here on; False when that cannot be."""
        if self._broken:
            return False
        if not torch.cuda.is_initialized():
            return self._refuse("no GPU is in use: no kernels are captured")
        if _profiled():
            self._spool.fault("kernels", "another profiler was active: steps meanwhile have no kernels")
            return False
        try:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        except Exception as error:
            self._profiler = None
            return self._refuse(f"the profiler does not start: {error}")
        self._start_ns = time.monotonic_ns()
        return True

    def stop(self, step: int) -> None:
        """Leave the trace of what ran since `start`, as of step `step`; does nothing when none is captured."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        try:
            profiler.stop()  # waits for the device: what was launched has ended
            end_ns, ahead_ns = time.monotonic_ns(), _wall_ahead_ns()
            name = f"kernels-{step:06d}.json"
            path = os.path.join(self._folder, name)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            profiler.export_chrome_trace(path)
            detail = {"file": name, "step": step, "start_ns": self._start_ns, "wall_ahead_ns": ahead_ns}
            self._spool.put("mark", MARK, end_ns, json.dumps(detail))
        except Exception as error:
            self._refuse(f"the profiler's trace is lost: {error}")

    def _refuse(self, why: str) -> bool:
        self._broken = True
        self._spool.fault("kernels", why)
        return False


def _profiled() -> bool:
    """Is torch's profiler active, whoever started it?"""
    return bool(torch._C._autograd._profiler_enabled())


def _wall_ahead_ns() -> int:
    """Wall clock less monotonic clock: the tightest of a few readings."""
    best = None
    for _ in range(5):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = after - before, wall - (before + after) // 2
    assert best is not None
    return best[1]
