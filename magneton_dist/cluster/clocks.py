"""Offset of another host's monotonic clock, from the fastest of several round trips."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from magneton_dist.records.manifest import Clock

SAME = Clock(offset_ns=0, error_ns=0)
_PINGS = 20


def clock_identity() -> str:
    """Equal in two processes exactly when they read one monotonic clock (same boot, same time namespace)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/time').readlink()}"


def measure(ask: Callable[[], int], pings: int = _PINGS) -> Clock:
    """Offset of the clock that `ask` reads (ns), and half of the shortest round trip as its error."""
    trips = []
    for _ in range(pings):
        sent_ns = time.monotonic_ns()
        there_ns = ask()
        trips.append((sent_ns, there_ns, time.monotonic_ns()))
    return estimate(trips)


def estimate(trips: Iterable[tuple[int, int, int]]) -> Clock:
    """Clock from round trips (sent, read there, received), ns: add `offset_ns` to the other host's times.

    The reading was taken somewhere within the trip, so half of the shortest trip bounds the error.
    """
    sent_ns, there_ns, received_ns = min(trips, key=lambda trip: trip[2] - trip[0])
    return Clock(offset_ns=(sent_ns + received_ns) // 2 - there_ns, error_ns=(received_ns - sent_ns + 1) // 2)


def combine(start: Clock, end: Clock) -> Clock:
    """One clock for a whole run from those at its start and end: drift widens the error."""
    low = min(start.offset_ns - start.error_ns, end.offset_ns - end.error_ns)
    high = max(start.offset_ns + start.error_ns, end.offset_ns + end.error_ns)
    return Clock(offset_ns=(low + high) // 2, error_ns=(high - low + 1) // 2)
