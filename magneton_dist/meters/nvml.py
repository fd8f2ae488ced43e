"""NVIDIA GPUs by NVML: instant power with the driver's own timestamps, energy counter, device conditions.

`nvmlDeviceGetPowerUsage` is a 1 s average on most GPUs since Ampere, so power comes from the field
POWER_INSTANT; the average stands in only where that is not supported, under its own sensor name.
NVML needs no CUDA context and this module makes none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pynvml

from magneton_dist.errors import MeterError
from magneton_dist.meters.gpm import Activity, Gpm
from magneton_dist.meters.meter import Conditions, Counter, Reading
from magneton_dist.meters.visible import Visible, find_gpu, visible_devices

if TYPE_CHECKING:
    from magneton_dist.records.audit import EnergyKind

# 25 of every 100 ms: A100 and H100, arXiv 2312.02741. Other GPUs average over longer windows.
_INSTANT_WINDOW_NS = 25_000_000
_AVERAGE_WINDOW_NS = 1_000_000_000
_LIMIT_W = 5_000.0  # above what any module draws, where the power cap is not known
_CLOCK_JUMP_NS = 10_000_000_000  # a driver timestamp further than this from now is no timestamp

_DOCTOR = "see `magneton-dist doctor`"

_THROTTLE = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "external power brake",
}


class NvmlMeter:
    """One GPU, addressed by UUID.

    Args:
        device: GPU UUID (with or without ``GPU-``), unique prefix, MIG id or NVML index.
        nvml: the `pynvml` module, or one that answers like it.

    Raises:
        MeterError: NVML is not there, or the device is not.
    """

    name = "nvml"
    period_s = 0.1

    def __init__(self, device: str, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._open = False
        self._gpm: Gpm | None = None
        if device == "cpu":
            raise MeterError("NVML is asked for GPUs only", where="meter nvml", do="use auto, rapl or hwmon")
        _init(nvml)
        self._open = True
        try:
            gpus = _gpus(nvml)
            uuid = find_gpu(device, gpus, _migs(nvml))
            if uuid is None:
                raise MeterError(
                    f"NVML sees no GPU {device!r}",
                    where="meter nvml",
                    do=f"it sees {', '.join(gpus) or 'none'}",
                )
            self.device = uuid
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._mig = f"only a MIG slice of {uuid} is visible" if device.startswith("MIG-") else ""
            self.model = (self._ask(nvml.nvmlDeviceGetName) or "GPU") + (" (MIG)" if self._mig else "")
            cap_w = self._power_cap_w()
            self._limit_w = 2 * cap_w if cap_w else _LIMIT_W
            self._counter = Counter(self._limit_w)
            self._stamp = (-1, 0)  # the driver's timestamp of the last power reading, and what it became
            self.sensor, self.window_ns, reason = self._choose_sensor()
            self.counter = "nvml-energy" if self._read_counter()[0] is not None else ""
            measured = self.sensor != "null"
            self.provenance: EnergyKind = "measured" if measured else "unmeasured"
            self.source = self._describe(reason)
        except nvml.NVMLError as error:
            self.close()
            raise MeterError(str(error), where=f"meter nvml, {device}", do=_DOCTOR) from error
        except MeterError:
            self.close()
            raise

    def read(self) -> Reading:
        """Power and energy now; both carry the time they speak for."""
        now_ns = time.monotonic_ns()
        joules, why_no_joules = self._read_counter()
        if self.sensor == "nvml-energy":
            t_ns = now_ns if joules is None else self._counter.tick_ns
            return Reading(t_ns, self._counter.watts, joules, now_ns, why_no_joules)
        t_ns, watts, why_no_watts = self._read_power()
        return Reading(t_ns, watts, joules, now_ns, why_no_watts or why_no_joules)

    def conditions(self) -> Conditions:
        """Temperature, power cap, reasons for throttling, and who else uses the GPU."""
        nvml = self._nvml
        temperature = self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        mask = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        # by version: the plain name raises an error outside of NVMLError on drivers that lack it
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3) or []
        crowd = f"{len(processes)} processes compute on {self.device}" if len(processes) > 1 else ""
        return Conditions(
            temperature_c=None if temperature is None else float(temperature),
            power_cap_w=self._power_cap_w(),
            throttled=tuple(reason for bit, reason in _THROTTLE.items() if mask & bit),
            shared=self._mig or crowd,
        )

    def activity(self) -> Activity | None:
        """How busy the GPU's parts were since the last call; None at first and within 100 ms.

        Raises:
            MeterError: this GPU does not tell.
        """
        if self._gpm is None:
            self._gpm = Gpm(self._handle, self._nvml)
        return self._gpm.read()

    def close(self) -> None:
        """Give NVML back."""
        if self._open:
            self._open = False
            if self._gpm is not None:
                self._gpm.close()
            self._nvml.nvmlShutdown()

    def _choose_sensor(self) -> tuple[str, int, str]:
        """Name and window of the best working sensor, and why it is not the best there could be."""
        self.sensor = "nvml-instant"
        watts, why_no_instant = self._read_power()[1:]
        if watts is not None:
            return "nvml-instant", _INSTANT_WINDOW_NS, ""
        self.sensor = "nvml-average"
        watts, why_no_average = self._read_power()[1:]
        if watts is not None:
            return "nvml-average", _AVERAGE_WINDOW_NS, f"instant power: {why_no_instant}"
        reason = f"instant power: {why_no_instant}; average power: {why_no_average}"
        joules, why_no_joules = self._read_counter()
        if joules is not None:
            return "nvml-energy", 0, reason
        return "null", 0, f"{reason}; energy counter: {why_no_joules}"

    def _read_power(self) -> tuple[int, float | None, str]:
        """Time (monotonic, ns), watts or None, and why None."""
        nvml = self._nvml
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        try:
            if self.sensor == "nvml-instant":
                field = nvml.nvmlDeviceGetFieldValues(
                    self._handle, [(nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_POWER_SCOPE_GPU)]
                )[0]
                if field.nvmlReturn != nvml.NVML_SUCCESS:
                    return now_ns, None, str(nvml.NVMLError(field.nvmlReturn))
                watts = field.value.uiVal / 1e3
                now_ns = self._monotonic_ns(field.timestamp, now_ns, wall_ns)
            elif self.sensor == "nvml-average":
                watts = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3
            else:
                return now_ns, None, self.source
        except nvml.NVMLError as error:
            return now_ns, None, str(error)
        if not 0 < watts < self._limit_w:
            return now_ns, None, f"impossible reading of {watts:.0f} W"
        return now_ns, watts, ""

    def _monotonic_ns(self, stamp_us: int, now_ns: int, wall_ns: int) -> int:
        """The driver's timestamp (µs since 1970) on our clock; the same stamp always gives the same time."""
        if stamp_us != self._stamp[0]:
            age_ns = wall_ns - stamp_us * 1000
            if abs(age_ns) >= _CLOCK_JUMP_NS:
                return now_ns  # 0, or the time of another clock: the next one may be the same
            # never of the future, in which later readings would drown: the wall clock was set meanwhile
            self._stamp = (stamp_us, now_ns - max(0, age_ns))
        return self._stamp[1]

    def _read_counter(self) -> tuple[float | None, str]:
        """Joules since opening or None, and why None."""
        try:
            raw_j = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        except self._nvml.NVMLError as error:
            return None, str(error)
        return self._counter.update(time.monotonic_ns(), raw_j), self._counter.fault

    def _power_cap_w(self) -> float | None:
        cap_mw = self._ask(self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if cap_mw is None else cap_mw / 1e3

    def _ask(self, question: Any, *arguments: object) -> Any:
        """The answer, or None when this device does not give it."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def _describe(self, reason: str) -> str:
        nvml = self._nvml
        if self.sensor == "null":
            return f"NVML reads no energy of {self.device}: {reason}"
        what = {
            "nvml-instant": "instant power, averaged over the last 25 ms of every 100 ms on A100 and H100",
            "nvml-average": "power averaged over 1 s",
            "nvml-energy": "energy counter",
        }[self.sensor]
        driver = nvml.nvmlSystemGetDriverVersion()
        return f"NVML {what}; {self.model}, driver {driver}" + (f"; {reason}" if reason else "")


def visible_gpus(value: str | None, nvml: Any = pynvml) -> Visible:
    """Physical GPUs that CUDA_VISIBLE_DEVICES = `value` shows, in CUDA's order; `MeterError` without NVML."""
    _init(nvml)
    try:
        return visible_devices(value, _gpus(nvml), _migs(nvml))
    except nvml.NVMLError as error:
        raise MeterError(str(error), where="NVML", do=_DOCTOR) from error
    finally:
        nvml.nvmlShutdown()


def _init(nvml: Any) -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise MeterError(
            f"NVML is not usable: {error}",
            where="meter nvml",
            do="install the NVIDIA driver, or use another meter",
        ) from error


def _gpus(nvml: Any) -> list[str]:
    """UUIDs of the machine's GPUs in NVML's order."""
    handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
    return [nvml.nvmlDeviceGetUUID(handle) for handle in handles]


def _migs(nvml: Any) -> dict[str, str]:
    """MIG UUID -> UUID of its GPU."""
    parents: dict[str, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(gpu)
        try:
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except nvml.NVMLError:
            continue  # no MIG on this model
        for slot in range(slots):
            try:
                parents[nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot))] = uuid
            except nvml.NVMLError:
                continue  # an empty slot
    return parents
