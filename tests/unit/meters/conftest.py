from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GPUS = ("GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000")
MIG = "MIG-cccc4444-0000"


class FakeNvml:
    """Answers like the `pynvml` module; `errors` maps a function's name to the error it raises."""

    NVML_SUCCESS = 0
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_POWER_SCOPE_GPU = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60
    NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            names = {3: "Not Supported", 4: "Insufficient Permissions", 12: "Library Not Found"}
            super().__init__(names[value])

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.field_error = 0
        self.power_mw = 124_000
        self.average_mw = 99_000
        self.energy_mj = 5_000_000
        self.stamp_us: int | None = None  # None: 30 ms ago
        self.reasons = 0
        self.processes = 1
        self.opened = 0
        self.gpm: dict[int, float] | None = {2: 100.0, 5: 0.5, 10: 1.0, 60: 3.0, 61: 1.0}  # percent, MiB/s
        self.samples = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*arguments: Any) -> Any:
            if name in self.errors:
                raise self.NVMLError(self.errors[name])
            return getattr(self, "_" + name)(*arguments)

        return function

    def _nvmlInit(self) -> None:
        self.opened += 1

    def _nvmlShutdown(self) -> None:
        self.opened -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return len(GPUS)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return GPUS[index]

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid in GPUS
        return uuid

    def _nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        if handle != GPUS[2]:
            raise self.NVMLError(3)
        return 2

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, slot: int) -> str:
        if slot:
            raise self.NVMLError(3)
        return MIG

    def _nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        assert fields == [(186, 0)]
        stamp_us = time.time_ns() // 1000 - 30_000 if self.stamp_us is None else self.stamp_us
        value = SimpleNamespace(uiVal=self.power_mw)
        return [SimpleNamespace(nvmlReturn=self.field_error, timestamp=stamp_us, value=value)]

    def _nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.average_mw

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self.energy_mj

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def _nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 41

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: str) -> list[object]:
        return [object()] * self.processes

    def _nvmlGpmQueryDeviceSupport(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=self.gpm is not None)

    def _nvmlGpmSampleAlloc(self) -> pynvml.c_nvmlGpmSample_t:
        self.samples += 1
        return pynvml.c_nvmlGpmSample_t()

    def _nvmlGpmSampleFree(self, sample: pynvml.c_nvmlGpmSample_t) -> None:
        self.samples -= 1

    def _nvmlGpmSampleGet(self, handle: str, sample: pynvml.c_nvmlGpmSample_t) -> None:
        assert handle in GPUS

    def _nvmlGpmMetricsGet(self, question: pynvml.c_nvmlGpmMetricsGet_t) -> pynvml.c_nvmlGpmMetricsGet_t:
        assert question.version == 1
        for metric in question.metrics[: question.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in self.gpm else 3
            metric.value = self.gpm.get(metric.metricId, 0.0)
        return question

    def _nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def _nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"


class Clock:
    """Stands for the `time` module of a meter: time passes only when told."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.wall_offset_ns = 1_700_000_000_000_000_000

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + self.wall_offset_ns

    def thread_time_ns(self) -> int:
        return 0


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def clock() -> Clock:
    return Clock()
