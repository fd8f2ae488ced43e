"""What `launch` shows while it runs: one live line on a terminal, a line per run elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from magneton_dist.cluster.progress import Progress

_REFRESH_HZ = 4.0


class Ticker:
    """Shows `Progress` on `console` (stderr); use it as a context manager.

    Off a terminal it prints one line when another run starts, and every note.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=_REFRESH_HZ, transient=True)
        self._run = 0

    def __enter__(self) -> Ticker:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, moment: Progress) -> None:
        """Show one moment."""
        if moment.note:
            self._console.print(Text(moment.note))
        if self._console.is_terminal:
            self._live.update(Text(describe(moment), overflow="ellipsis", no_wrap=True))
        elif moment.run != self._run:
            self._run = moment.run
            self._console.print(Text(describe(moment)), soft_wrap=True)


def describe(moment: Progress) -> str:
    """One line: which run of how many, what it does, how far it is, and how long all of it takes still."""
    which = "warm-up" if moment.repeat is None else f"repeat {moment.repeat}"
    parts = [f"run {moment.run}/{moment.runs}", f"{moment.variant} {which}", moment.state.lower()]
    if moment.ranks:
        parts.append(f"ranks {moment.ranks}/{moment.world_size}")
    if moment.step:
        parts.append(f"step {moment.step}" + (f"/{moment.steps}" if moment.steps else ""))
    if moment.left_s is not None:
        parts.append(f"about {duration(moment.left_s)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """``48 s``, ``3 min 05 s``, ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
