"""Ctrl-C and SIGTERM, as something to look at instead of an exception in the middle of anything."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within this context the signals are remembered. Elsewhere than on the main thread it does nothing.

    Attributes:
        why: the first signal's name, empty so far.
        at_s: when it came, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.why = ""
        self.at_s = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _WATCHED}
            if handlers[signal.SIGHUP] is signal.SIG_IGN:  # nohup
                del handlers[signal.SIGHUP]
            self._before = handlers
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def arm(self) -> None:
        """Take the signals (again): starting Ray puts handlers of its own in place."""
        for number in self._before:
            signal.signal(number, self._remember)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Within, the signals do what they did before this context: Ctrl-C raises KeyboardInterrupt."""
        self._give_back()
        try:
            yield
        finally:
            self.arm()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: FrameType | None) -> None:
        if not self.why:
            self.why, self.at_s = signal.Signals(number).name, time.monotonic()
