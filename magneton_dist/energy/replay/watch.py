"""The meters of the devices under replay, polled all the while."""

from __future__ import annotations

import time
from collections.abc import Sequence

from magneton_dist.energy.replay.power import Tables
from magneton_dist.meters.meter import Conditions, Meter
from magneton_dist.meters.sampler import Sampler

_POLL_S = 0.01  # shortest time between two looks at a meter


class MeterWatch:
    """A `protocol.Watch` of real meters; use it as a context manager.

    Args:
        meters: one for each device under load; open, and left open.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self.meters = meters
        self.measures = all(meter.provenance == "measured" for meter in meters)
        self.period_s = max(meter.period_s for meter in meters)
        self.window_s = max(meter.window_ns for meter in meters) / 1e9
        # often enough to see every update of a sensor that does not tell when it updates
        self._samplers = [Sampler(meter, max(meter.period_s / 10, _POLL_S)) for meter in meters]
        self._seen = [(0, 0)] * len(meters)

    def __enter__(self) -> MeterWatch:
        for sampler in self._samplers:
            sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        for sampler in self._samplers:
            sampler.stop()

    @property
    def faults(self) -> list[str]:
        """Why readings failed."""
        return [fault for sampler in self._samplers for fault in sampler.faults]

    def readings(self, start_ns: int, end_ns: int) -> list[Tables]:
        """What came since the last look, which began no later than `start_ns`."""
        found = []
        for place, sampler in enumerate(self._samplers):
            power, counters = sampler.tables(self._seen[place])
            before = self._seen[place]
            self._seen[place] = (before[0] + len(power), before[1] + len(counters))
            found.append((power, counters))
        return found

    def conditions(self) -> list[Conditions]:
        """Of each device, now."""
        return [meter.conditions() for meter in self.meters]

    def rest_until(self, moment_s: float, period_s: float) -> None:
        """See `protocol.Watch`."""
        time.sleep((moment_s - time.monotonic()) % period_s)
