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
        self._schedstat = -1
        try:
            self._schedstat = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY)
        except OSError as error:
            spool.fault("stamps", f"no run-queue delay: {error}")

    def stamp(self, at_ns: int | None = None) -> int:
        """Write one row; returns its time in ns on the host's monotonic clock.

        Args:
            at_ns: the row's time, a moment ago; default: now. The clocks are read now in any case.
        """
        now = monotonic_ns()
        # its own clock is the cheaper one for a thread
        cpu = thread_time_ns() if get_ident() == self._main_thread else clock_gettime_ns(self._cpu_clock)
        if now - cpu > self._off_core_ns + _SLACK_NS:
            self._off_core_ns = now - cpu
            self._delay_ns = self._read_delay()
        time_ns = now if at_ns is None else at_ns
        self._append(("stamp", time_ns, cpu, self._delay_ns))
        return time_ns

    def _read_delay(self) -> int | None:
        if self._schedstat < 0:
            return None
        try:
            return int(os.pread(self._schedstat, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):  # the job closed our descriptor
            self._schedstat = -1
            return None
