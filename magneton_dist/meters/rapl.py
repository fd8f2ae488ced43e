"""CPU packages (and their DRAM) by RAPL, read from the kernel's powercap files.

Ranks of one host share its packages: the meter's `device` is the same for all of them.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magneton_dist.errors import MeterError
from magneton_dist.meters.meter import Conditions, Counter, Reading

if TYPE_CHECKING:
    from magneton_dist.records.audit import EnergyKind

POWERCAP = Path("/sys/class/powercap")
_LIMIT_W = 1_000.0  # per zone; no socket draws as much


@dataclass
class _Zone:
    name: str
    file: Path
    counter: Counter

    def joules(self, t_ns: int) -> float | None:
        return self.counter.update(t_ns, int(self.file.read_text()) / 1e6)


class RaplMeter:
    """All packages of this host together, with the DRAM zones that RAPL counts beside them.

    Args:
        root: the powercap folder.

    Raises:
        MeterError: there is no RAPL here, or its files may not be read.
    """

    name = "rapl"
    provenance: EnergyKind = "measured"
    sensor = "rapl"
    counter = "rapl"
    period_s = 0.001
    window_ns = 0  # a reading is the mean since the one before

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = _zones(root)
        names = [zone.name for zone in self._zones]
        self.device = f"{socket.gethostname()}/{'+'.join(names)}"
        self.source = f"RAPL of {', '.join(names)}: the whole host's processors, not one rank's alone"
        self._last: tuple[int, float] | None = None
        self.read()

    def read(self) -> Reading:
        """Joules since opening, and mean watts since the last reading."""
        t_ns = time.monotonic_ns()
        total_j = 0.0
        for zone in self._zones:
            try:
                joules = zone.joules(t_ns)
            except (OSError, ValueError) as error:
                return self._failed(t_ns, f"{zone.name}: {error}")
            if joules is None:
                return self._failed(t_ns, f"{zone.name}: {zone.counter.fault}")
            total_j += joules
        watts = None
        reason = "first reading after a gap: no interval to average over"
        if self._last is not None and t_ns > self._last[0]:
            watts, reason = (total_j - self._last[1]) / ((t_ns - self._last[0]) / 1e9), ""
        self._last = (t_ns, total_j)
        return Reading(t_ns, watts, total_j, reason=reason)

    def conditions(self) -> Conditions:
        """RAPL tells no conditions; its zones belong to every process of the host."""
        return Conditions(shared=f"every process of the host draws from {self.device}")

    def close(self) -> None:
        """Nothing is held open."""

    def _failed(self, t_ns: int, reason: str) -> Reading:
        self._last = None
        return Reading(t_ns, None, None, reason=reason)


def _zones(root: Path) -> list[_Zone]:
    # psys contains the packages, core and uncore are inside them: neither is added.
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
            if not name.startswith("package"):
                if name != "dram":
                    continue
                name = f"dram-{folder.name.split(':')[1]}"
            range_j = int((folder / "max_energy_range_uj").read_text()) / 1e6
            zone = _Zone(name, folder / "energy_uj", Counter(_LIMIT_W, range_j))
            zone.file.read_text()
        except PermissionError as error:
            raise MeterError(
                "RAPL's energy counters are readable by root only", where=str(error.filename),
                do=f"chmod a+r {root}/intel-rapl:*/energy_uj as root, or use another meter",
            ) from error
        except (OSError, ValueError) as error:
            what = f"RAPL zone cannot be read: {error}"
            raise MeterError(what, where=str(folder), do="use another meter") from error
        found.append(zone)
    if not any(zone.name.startswith("package") for zone in found):
        raise MeterError(
            "no RAPL package here", where=str(root),
            do="load the intel_rapl_common module on bare metal; virtual machines usually hide RAPL",
        )
    return found
