"""GPUs that only the package `zeus` reads, AMD's above all. NVIDIA's are read directly and better by `nvml`.

Importing zeus takes seconds and hundreds of MB: it is an extra, imported when asked for.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from magneton_dist.errors import MeterError
from magneton_dist.meters.meter import Conditions, Counter, Reading

if TYPE_CHECKING:
    from magneton_dist.records.audit import EnergyKind

_LIMIT_W = 5_000.0
_INSTALL = "pip install 'magneton-dist[zeus]'"


class ZeusMeter:
    """One GPU by zeus's instant power and energy counter.

    Args:
        device: GPU UUID or prefix on NVIDIA; zeus's index; anything where zeus sees only one GPU.
        gpus: what `zeus.device.get_gpus()` gives; default: ask it.

    Raises:
        MeterError: zeus is not installed, sees no GPU, or not this one.
    """

    name = "zeus"
    sensor = "zeus"
    provenance: EnergyKind = "measured"
    period_s = 0.1
    window_ns = 0

    def __init__(self, device: str, gpus: Any = None) -> None:
        if device == "cpu":
            raise MeterError("zeus is asked for GPUs only", where="meter zeus", do="use rapl or hwmon")
        self._gpu, self.device = _find(device, list((gpus or _gpus()).gpus))
        self._counter = Counter(_LIMIT_W)
        try:
            name = self._gpu.get_name()
            counts = bool(self._gpu.supports_get_total_energy_consumption())
        except Exception as error:  # zeus raises its own and its libraries' errors
            raise MeterError(str(error), where=f"meter zeus, {device}", do="use another meter") from error
        self.counter = "zeus-energy" if counts else ""
        self.source = f"zeus: instant power{' and energy counter' if counts else ''}; {name}"
        reading = self.read()
        if reading.watts is None and reading.joules is None:
            raise MeterError(reading.reason, where=f"meter zeus, {device}", do="use another meter")

    def read(self) -> Reading:
        """Power and energy now."""
        t_ns = time.monotonic_ns()
        reasons, watts, joules = [], None, None
        try:
            watts = self._gpu.get_instant_power_usage() / 1e3
        except Exception as error:  # noqa: BLE001 - zeus raises its own and its libraries' errors
            reasons.append(f"power: {error}")
        if watts is not None and not 0 < watts < _LIMIT_W:
            reasons.append(f"impossible reading of {watts:.0f} W")
            watts = None
        if self.counter:
            try:
                joules = self._counter.update(t_ns, self._gpu.get_total_energy_consumption() / 1e3)
            except Exception as error:  # noqa: BLE001 - the same
                reasons.append(f"energy: {error}")
            if self._counter.fault:
                reasons.append(self._counter.fault)
        return Reading(t_ns, watts, joules, reason="; ".join(reasons))

    def conditions(self) -> Conditions:
        """Temperature, where zeus tells it; it tells no throttling."""
        try:
            return Conditions(temperature_c=float(self._gpu.get_gpu_temperature()))
        except Exception:  # noqa: BLE001 - the same
            return Conditions()

    def close(self) -> None:
        """zeus keeps its libraries open for the process."""


def _gpus() -> Any:
    try:
        device = import_module("zeus.device")
    except ImportError as error:
        raise MeterError("zeus is not installed", where="meter zeus", do=_INSTALL) from error
    try:
        return device.get_gpus()
    except Exception as error:  # the same
        raise MeterError(f"zeus sees no GPU: {error}", where="meter zeus", do="use another meter") from error


def _find(device: str, gpus: list[Any]) -> tuple[Any, str]:
    """The GPU and what it is called."""
    names = [_uuid(gpu) or str(index) for index, gpu in enumerate(gpus)]
    for index, (gpu, name) in enumerate(zip(gpus, names, strict=True)):
        if device in (name, name.removeprefix("GPU-"), str(index)):
            return gpu, name
    if len(gpus) == 1 and not names[0].startswith("GPU-"):
        return gpus[0], device
    raise MeterError(f"zeus sees no GPU {device!r}", where="meter zeus", do=f"it sees {', '.join(names) or 'none'}")


def _uuid(gpu: Any) -> str | None:
    """UUID of an NVIDIA GPU; None where zeus does not tell."""
    if type(gpu).__module__ != "zeus.device.gpu.nvidia" or not hasattr(gpu, "handle"):
        return None
    import pynvml

    try:
        return str(pynvml.nvmlDeviceGetUUID(gpu.handle))
    except pynvml.NVMLError:
        return None
