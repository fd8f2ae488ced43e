"""Clocks of the main thread, read at every issue, completion and step edge."""

from __future__ import annotations

import os
import threading
import time

from magneton_dist.tracer.spool import Spool


class Stamps:
    """Writes `stamp` rows: when, CPU time of the main thread, time it was runnable but waited for a core.

    Any thread may stamp; about 1.5 µs. The delay is None where the kernel keeps no scheduler statistics.
    """

    def __init__(self, spool: Spool) -> None:
        self._put = spool.put
        self._cpu_clock = time.pthread_getcpuclockid(threading.main_thread().ident or threading.get_ident())
        self._delay_ns: int | None = None
        path = f"/proc/self/task/{os.getpid()}/schedstat"
        try:
            self._schedstat: int | None = os.open(path, os.O_RDONLY)
        except OSError as error:
            self._schedstat = None
            spool.fault("stamps", f"no run-queue delay: {error}")

    def stamp(self) -> int:
        """Write one row; returns its time in ns on the host's monotonic clock."""
        now = time.monotonic_ns()
        cpu = time.clock_gettime_ns(self._cpu_clock)
        self._put("stamp", now, cpu, None if self._schedstat is None else self._delay(self._schedstat))
        return now

    def _delay(self, schedstat: int) -> int | None:
        try:
            return int(os.pread(schedstat, 64, 0).split()[1])
        except (OSError, IndexError):  # the job closed our descriptor
            self._schedstat = None
            return None
