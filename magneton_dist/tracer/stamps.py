"""Clocks of the main thread, read at every issue, completion and step edge."""

from __future__ import annotations

import os
import threading
import time
from threading import get_ident
from time import clock_gettime_ns, monotonic_ns, thread_time_ns

from magneton_dist.tracer.spool import Spool

# The delay grows only while the thread is off its core. Asking the kernel for it costs 30 µs when the caches hold
# the job's data, so it is worth it after this long only.
_SLACK_NS = 200_000
_TICK_NS = int(time.clock_getres(6) * 1e9)  # of CLOCK_MONOTONIC_COARSE, which Python has no name for


class Stamps:
    """Writes `stamp` rows: when, CPU time of the main thread, time it was runnable but waited for a core.

    Any thread may stamp; about 1 µs, 2 when the main thread was off its core since. The delay is then exact,
    else at most 0.2 ms behind; it is None where the kernel keeps no scheduler statistics.
    """

    def __init__(self, spool: Spool) -> None:
        self._append = spool.append
        self._main_thread = threading.main_thread().ident or get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._main_thread)
        self._off_core_ns = -_SLACK_NS  # when the delay was read
        self._delay_ns: int | None = None
        self._slept_ns = 0  # neither on a core nor waiting for one, at the last stamp that was no issue's
        self._schedstat = -1
        try:
            self._schedstat = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY)
        except OSError as error:
            spool.fault("stamps", f"no run-queue delay: {error}")

    def stamp(self) -> int:
        """Write one row; returns its time in ns on the host's monotonic clock."""
        now = monotonic_ns()
        self._write(now, now)
        return now

    def stamp_issue(self, at_ns: int) -> None:
        """Write one row for what happened at `at_ns`, a moment ago: the issue of a collective.

        A kernel that is asked for the CPU time of a running thread may take it off its core on that occasion: 1 ms
        a collective where ranks share cores if that is right before the issue, for which all peers wait, and 0.5 ms
        after it. So the kernel's books are read, which are up to a tick behind: if they allow that the thread
        has not slept since the last stamp, its CPU time is all the time but the delay. Sleep of less than a tick
        right before an issue so passes for CPU time, until the next stamp of another kind.
        """
        now = monotonic_ns()
        books = self._read() if get_ident() == self._main_thread else None
        if books is not None:
            awake_ns = now - self._slept_ns - books[1]
            if 0 <= awake_ns - books[0] <= _TICK_NS:
                self._delay_ns = books[1]
                self._off_core_ns = now - awake_ns
                self._append(("stamp", at_ns, awake_ns, books[1]))
                return
        self._write(now, at_ns)

    def _write(self, now: int, at_ns: int) -> None:
        # its own clock is the cheaper one for a thread
        cpu = thread_time_ns() if get_ident() == self._main_thread else clock_gettime_ns(self._cpu_clock)
        if now - cpu > self._off_core_ns + _SLACK_NS:
            self._off_core_ns = now - cpu
            books = self._read()
            self._delay_ns = None if books is None else books[1]
        self._slept_ns = now - cpu - (self._delay_ns or 0)
        self._append(("stamp", at_ns, cpu, self._delay_ns))

    def _read(self) -> tuple[int, int] | None:
        """CPU time and run-queue delay of the main thread in the kernel's books, ns."""
        if self._schedstat < 0:
            return None
        try:
            cpu, delay = os.pread(self._schedstat, 64, 0).split()[:2]
            return int(cpu), int(delay)
        except (OSError, ValueError):  # the job closed our descriptor
            self._schedstat = -1
            return None
