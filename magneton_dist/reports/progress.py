"""Live progress of an audit: two lines that redraw on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from magneton_dist.cluster.progress import Progress
from magneton_dist.reports.figures import one_line

QUIET_S = 10.0  # seconds between plain lines while nothing but the step changes


class ProgressView:
    """Shows `Progress` events on `console` while used as a context manager.

    On a terminal nothing of it stays when it closes, except notes. It starts no thread, so it cannot outlive
    an interrupted audit.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        self._last: Progress | None = None
        self._said_s = 0.0

    def __enter__(self) -> ProgressView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show one moment; its note, if any, stays."""
        if progress.note:
            self._console.print(Text(one_line(progress.note, 400)))
        if self._live is not None:
            self._live.update(_moment(progress), refresh=True)
        elif self._worth_a_line(progress):
            self._console.print(Text(f"{run_text(progress)}: {step_text(progress)}"), soft_wrap=True)
            self._said_s = self._clock()
        self._last = progress

    def _worth_a_line(self, progress: Progress) -> bool:
        last = self._last
        if last is None or (last.run, last.state) != (progress.run, progress.state):
            return True
        return self._clock() - self._said_s >= QUIET_S


def run_text(progress: Progress) -> str:
    """Which run: ``run 3 of 10, join, repeat 2``."""
    which = "warm-up" if progress.repeat is None else f"repeat {progress.repeat}"
    return f"run {progress.run} of {progress.runs}, {one_line(progress.variant, 40)}, {which}"


def step_text(progress: Progress) -> str:
    """How far: ``Running, step 23 of 58, 2 of 2 ranks, 41 s left``."""
    steps = f"step {progress.step:,}" + (f" of {progress.steps:,}" if progress.steps else "")
    left = "" if progress.left_s is None else f", {duration(progress.left_s)} left"
    return f"{progress.state}, {steps}, {progress.ranks} of {progress.world_size} ranks{left}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``41 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _moment(progress: Progress) -> Group:
    done = progress.step / progress.steps if progress.steps else 0.0
    finished = min(progress.runs, progress.run - 1 + min(1.0, done))
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress.runs, completed=finished, width=24)
    line.add_row(bar, Text(run_text(progress), "bold"))
    return Group(line, Text(step_text(progress), "dim"))
