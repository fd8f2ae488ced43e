"""Polls one meter in a thread at a fixed period and keeps the readings as tables."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import astuple

import polars as pl

from magneton_dist.errors import MeterError
from magneton_dist.meters.gpm import Activity
from magneton_dist.meters.meter import Conditions, Meter, Monitored, Reading
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COUNTERS, POWER

_CONDITIONS_NS = 1_000_000_000  # time between two looks at temperature and throttling
_STALL_NS = 2_000_000_000  # longer than any sensor's window
_MOST_FAULTS = 8  # different reasons: some hold a figure, and a broken meter may go on for days
_OTHERS = "failed for other reasons"
_LOOK_SHARE = 0.004  # of a core, at most, for looks at performance monitors: power and counter come first


class Sampler:
    """Reads `meter` every `period_s` seconds, without drift: a late reading does not delay the next.

    A reading that fails becomes a row without watts: a gap, never 0. A sensor that has not updated since the
    reading before adds no row. A meter without a period (null, modelled) is not polled at all.
    Performance monitors are looked at beside it, as often as they have something new and a look costs little.

    Attributes:
        throttled: reasons for throttling seen, each once.
        shared: why the device's energy is not this process's alone, empty when it is.
        temperature_c: at start and at stop, None where not told.
        power_cap_w: at start, None where not told.
        unmonitored: why no performance monitors are looked at, empty when they are.
        core_share: share of one core that the polling cost; known after `stop`.
    """

    def __init__(self, meter: Meter, period_s: float = 0.05) -> None:
        self.meter = meter
        self._faults: Counter[str] = Counter()
        self.throttled: list[str] = []
        self.shared = ""
        self.temperature_c: tuple[float, float] | None = None
        self.power_cap_w: float | None = None
        self.core_share = 0.0
        self._period_ns = max(1, int(period_s * 1e9))
        self._power: list[tuple[int, float | None, int]] = []  # t_ns, watts, window_ns
        self._counters: list[tuple[int, float]] = []  # t_ns, joules
        self._activity: list[Activity] = []
        self._look_ns = 0  # when the next one is due
        self._monitored = meter if isinstance(meter, Monitored) else None
        self.unmonitored = self._why_unmonitored()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def faults(self) -> list[str]:
        """Why readings failed: each reason once, and how often; those beyond the first few together."""
        return [
            f"meter {self.meter.name}: {reason}{f' ({times} times)' if times > 1 else ''}"
            for reason, times in list(self._faults.items())
        ]

    def start(self) -> None:
        """Start polling; the first reading is taken at once."""
        if self.meter.period_s > 0 and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="magneton-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Take a last reading, stop; returns the power and counters tables (see `tables`)."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self.tables()

    def tables(self, skip: tuple[int, int] = (0, 0)) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Tables `POWER` and `COUNTERS` of what was read so far; callable while polling.

        Args:
            skip: rows to leave out at the head of each, for a caller that has them already.
        """
        device, sensor = self.meter.device, self.meter.sensor
        power, counters = self._power[skip[0] :], self._counters[skip[1] :]
        columns = list(zip(*power, strict=True)) or [(), (), ()]
        power_table = pl.DataFrame(
            {
                "device": [device] * len(power), "t_ns": columns[0], "watts": columns[1],
                "sensor": [sensor] * len(power), "window_ns": columns[2],
            },
            schema=POWER.schema,
        )  # fmt: skip
        counters_table = pl.DataFrame(
            {
                "device": [device] * len(counters), "t_ns": [t for t, _ in counters],
                "joules": [j for _, j in counters], "sensor": [self.meter.counter] * len(counters),
            },
            schema=COUNTERS.schema,
        )  # fmt: skip
        return power_table, counters_table

    def monitors(self, skip: int = 0) -> pl.DataFrame:
        """Table `MONITORS` of what was seen so far, without `skip` rows at its head; callable while polling."""
        seen = [(self.meter.device, *astuple(activity)) for activity in self._activity[skip:]]
        return pl.DataFrame(seen, schema=MONITORS.schema, orient="row")

    def _run(self) -> None:
        started_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        first = self._conditions()
        self.power_cap_w = first.power_cap_w
        due_ns, conditions_ns = started_ns, started_ns
        while True:
            last = self._stop.is_set()
            self._keep(self._read())
            self._look()
            now_ns = time.monotonic_ns()
            if last or now_ns - conditions_ns > _CONDITIONS_NS:
                conditions_ns = now_ns
                latest = self._conditions()
            if last:
                break
            # the next point of the grid; points already missed are skipped
            due_ns += self._period_ns * (1 + max(0, now_ns - due_ns) // self._period_ns)
            self._stop.wait((due_ns - now_ns) / 1e9)
        if first.temperature_c is not None and latest.temperature_c is not None:
            self.temperature_c = (first.temperature_c, latest.temperature_c)
        self.core_share = (time.thread_time_ns() - cpu_ns) / max(1, time.monotonic_ns() - started_ns)

    def _read(self) -> Reading:
        try:
            return self.meter.read()
        except Exception as error:  # noqa: BLE001 - a broken meter must leave gaps with a reason, not end the record
            return Reading(time.monotonic_ns(), None, None, reason=f"{type(error).__name__}: {error}")

    def _why_unmonitored(self) -> str:
        """The first look, from which the next one on speaks; empty when there are monitors."""
        if self._monitored is None:
            return f"meter {self.meter.name} reads none"
        try:
            self._monitored.activity()
        except MeterError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - watts and joules are there without them
            return f"{type(error).__name__}: {error}"
        return ""

    def _look(self) -> None:
        if self.unmonitored or self._monitored is None or time.monotonic_ns() < self._look_ns:
            return
        cpu_ns = time.thread_time_ns()
        try:
            seen = self._monitored.activity()
        except Exception as error:  # noqa: BLE001 - the same; what was seen until here is kept
            self.unmonitored = f"given up: {type(error).__name__}: {error}"
            return
        if seen is not None:
            self._activity.append(seen)
            self._look_ns = seen.end_ns + int((time.thread_time_ns() - cpu_ns) / _LOOK_SHARE)

    def _conditions(self) -> Conditions:
        try:
            conditions = self.meter.conditions()
        except Exception as error:  # noqa: BLE001 - the same
            self._fault(f"{type(error).__name__}: {error}")
            return Conditions()
        self.throttled += [reason for reason in conditions.throttled if reason not in self.throttled]
        self.shared = self.shared or conditions.shared
        return conditions

    def _keep(self, reading: Reading) -> None:
        if reading.reason:
            self._fault(reading.reason)
        previous_ns = self._power[-1][0] if self._power else None
        if previous_ns is None or reading.t_ns > previous_ns:
            window_ns = self.meter.window_ns
            gap_ns = reading.t_ns - (reading.t_ns if previous_ns is None else previous_ns)
            if window_ns and gap_ns > max(_STALL_NS, 10 * self._period_ns):
                # a sensor with its own window says nothing about the time in which nobody polled it
                self._power.append((reading.t_ns - window_ns, None, gap_ns - window_ns))
            self._power.append((reading.t_ns, reading.watts, window_ns or gap_ns))
        if reading.joules is not None:
            t_ns = reading.t_ns if reading.joules_t_ns is None else reading.joules_t_ns
            self._counters.append((t_ns, reading.joules))

    def _fault(self, reason: str) -> None:
        known = reason in self._faults or len(self._faults) < _MOST_FAULTS
        self._faults[reason if known else _OTHERS] += 1
