"""Sensors of the kernel's hwmon class: NVIDIA Grace, AMD sockets, ACPI power meters.

A chip's sensors may contain each other (a Grace module contains its CPU, which contains its cores), so only those
known to stand for a whole are added up; of several unknown ones none is picked.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magneton_dist.errors import MeterError
from magneton_dist.meters.meter import Conditions, Counter, Reading

HWMON = Path("/sys/class/hwmon")
_LIMIT_W = 20_000.0  # no machine draws as much
_AVERAGE_INTERVAL_NS = 50_000_000  # Grace's, where a sensor does not tell its own
# By preference: a name that a whole goes by, and what is in it.
_WHOLES = (
    (re.compile(r"Grace Power Socket \d+"), "Grace sockets: CPU cores, caches and system I/O"),
    (re.compile(r"Esocket\d+"), "AMD sockets"),
    (re.compile(r"power_meter"), "the whole machine, by its ACPI power meter"),
)

if TYPE_CHECKING:
    from magneton_dist.records.audit import EnergyKind


@dataclass(frozen=True)
class _Input:
    """One file of watts or joules, in µW or µJ."""

    file: Path
    label: str
    counter: Counter | None  # None: watts

    def read(self, t_ns: int) -> float:
        """W, or J since opening; `ValueError` when a counter is not to be trusted."""
        value = int(self.file.read_text()) / 1e6
        if self.counter is None:
            return value
        joules = self.counter.update(t_ns, value)
        if joules is None:
            raise ValueError(self.counter.fault)
        return joules


class HwmonMeter:
    """The processors or the whole of this host, as far as one of its hwmon chips tells.

    Args:
        root: the hwmon folder.

    Raises:
        MeterError: there is no power or energy sensor, none that stands for a whole, or it may not be read.
    """

    name = "hwmon"
    provenance: EnergyKind = "measured"
    period_s = 0.05

    def __init__(self, root: Path = HWMON) -> None:
        self._inputs, what = _choose(root)
        labels = "+".join(one.label for one in self._inputs)
        counts = self._inputs[0].counter is not None
        self.device = f"{socket.gethostname()}/{labels}"
        kind = "energy counters" if counts else "average power"
        self.source = f"hwmon {kind} of {what}: {labels}, not one rank's alone"
        self.sensor = "hwmon-energy" if counts else "hwmon-average"
        self.counter = "hwmon-energy" if counts else ""
        self.window_ns = 0 if counts else _interval_ns(self._inputs[0].file)
        self._last: tuple[int, float] | None = None
        failed = self.read()
        if failed.watts is None and failed.joules is None:
            raise MeterError(failed.reason, where=f"meter hwmon, {labels}", do="make it readable, or use another meter")

    def read(self) -> Reading:
        """Mean watts of all inputs together; joules where they are counters."""
        t_ns = time.monotonic_ns()
        total = 0.0
        for one in self._inputs:
            try:
                total += one.read(t_ns)
            except (OSError, ValueError) as error:
                return self._failed(t_ns, f"{one.label}: {error}")
        if not self.counter:
            if not 0 < total < _LIMIT_W:
                return self._failed(t_ns, f"impossible reading of {total:.0f} W")
            return Reading(t_ns, total, None)
        watts, reason = None, "first reading after a gap: no interval to average over"
        if self._last is not None and t_ns > self._last[0]:
            watts, reason = (total - self._last[1]) / ((t_ns - self._last[0]) / 1e9), ""
        self._last = (t_ns, total)
        return Reading(t_ns, watts, total, reason=reason)

    def conditions(self) -> Conditions:
        """hwmon tells no throttling; its sensors see every process of the host."""
        return Conditions(shared=f"every process of the host draws from {self.device}")

    def close(self) -> None:
        """Nothing is held open."""

    def _failed(self, t_ns: int, reason: str) -> Reading:
        self._last = None
        return Reading(t_ns, None, None, reason=reason)


def _choose(root: Path) -> tuple[list[_Input], str]:
    """The inputs to add up, and what they are together."""
    found: list[_Input] = []
    for chip in sorted(root.glob("hwmon*")):
        folder = chip if list(chip.glob("power*_average")) or list(chip.glob("energy*_input")) else chip / "device"
        name = _text(chip / "name") or chip.name
        for file in sorted([*folder.glob("energy*_input"), *folder.glob("power*_average")]):
            stem = file.name.rsplit("_", 1)[0]
            label = _text(folder / f"{stem}_oem_info") or _text(folder / f"{stem}_label") or name
            found.append(_Input(file, label, Counter(_LIMIT_W) if stem.startswith("energy") else None))
    for pattern, what in _WHOLES:
        whole = [one for one in found if pattern.fullmatch(one.label)]
        counters = [one for one in whole if one.counter is not None]
        if whole:
            return counters or whole, what
    if len(found) == 1:
        return found, f"the chip's only sensor {found[0].file.name}"
    do = "use another meter"
    if found:
        labels = ", ".join(one.label for one in found)
        what = f"sensors {labels}: they may contain each other, and none is known to be a whole"
        raise MeterError(what, where=str(root), do=do)
    raise MeterError("no power*_average and no energy*_input here", where=str(root), do=do)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # an optional file


def _interval_ns(file: Path) -> int:
    """Averaging time of a power sensor; its own file has ms."""
    text = _text(file.with_name(f"{file.name}_interval"))
    return int(text) * 1_000_000 if text.isdecimal() and int(text) else _AVERAGE_INTERVAL_NS
