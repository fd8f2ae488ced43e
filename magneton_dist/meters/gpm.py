"""How busy the parts of an NVIDIA GPU are, by its performance monitors (GPM, Hopper and newer).

Utilisation reads 100 % for a kernel that spins and for one that moves data alike; tensor cores, DRAM and NVLink
near 0 tell the spin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from magneton_dist.errors import MeterError

_APART_NS = 100_000_000  # the driver gives no metrics of less
_MIB = 2**20
MOST_FAILURES = 10


@dataclass(frozen=True)
class Activity:
    """Means over the time between two looks.

    Attributes:
        start_ns, end_ns: of that time, host monotonic clock, ns.
        sm: share of SMs with work, 0 to 1; like the others None where the device does not tell.
        tensor: share of tensor cores' peak, 0 to 1.
        dram: share of DRAM bandwidth, 0 to 1.
        nvlink_bytes_s: received and sent together, B/s.
    """

    start_ns: int
    end_ns: int
    sm: float | None
    tensor: float | None
    dram: float | None
    nvlink_bytes_s: float | None


class Gpm:
    """Activity of one GPU between two looks at it.

    Args:
        handle: NVML's of the GPU.
        nvml: the `pynvml` module, or one that answers like it; initialised.

    Raises:
        MeterError: this GPU has no GPM, or this user may not read it.
    """

    def __init__(self, handle: Any, nvml: Any) -> None:
        self._handle, self._nvml = handle, nvml
        self._samples: list[Any] = []
        self._failures = 0
        self._metrics = [
            nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
            nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
        ]  # fmt: skip
        do = "Hopper and newer have it; MIG and some drivers need root"
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise MeterError("this GPU has no performance monitors", where="NVML GPM", do=do)
            self._samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
            self._since_ns = self._sample(0)
        except nvml.NVMLError as error:
            self.close()
            raise MeterError(str(error), where="NVML GPM", do=do) from error

    def read(self) -> Activity | None:
        """Means since the look before; None until 100 ms have passed, or when the driver fails now and then.

        Raises:
            MeterError: it has failed `MOST_FAILURES` times in a row.
        """
        if time.monotonic_ns() - self._since_ns < _APART_NS:
            return None
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(self._metrics)
        for metric, number in zip(question.metrics, self._metrics, strict=False):
            metric.metricId = number
        try:
            now_ns = self._sample(1)
            question.sample1, question.sample2 = self._samples
            answer = nvml.nvmlGpmMetricsGet(question)
        except nvml.NVMLError as error:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise MeterError(f"{error}, {self._failures} times in a row", where="NVML GPM") from error
            return None
        self._failures = 0
        start_ns, self._since_ns = self._since_ns, now_ns
        self._samples.reverse()
        told = [metric.value if metric.nvmlReturn == nvml.NVML_SUCCESS else None for metric in answer.metrics[:5]]
        sm, tensor, dram = (None if percent is None else percent / 100 for percent in told[:3])
        links = [mib_s * _MIB for mib_s in told[3:] if mib_s is not None]
        return Activity(start_ns, now_ns, sm, tensor, dram, sum(links) if links else None)

    def close(self) -> None:
        """Free the samples; harmless when repeated."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())

    def _sample(self, which: int) -> int:
        self._nvml.nvmlGpmSampleGet(self._handle, self._samples[which])
        return time.monotonic_ns()
