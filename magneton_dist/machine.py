"""What works on this machine, and why the rest does not."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from magneton_dist.errors import MagnetonError, MeterError

if TYPE_CHECKING:
    from magneton_dist.meters import Meter

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
SCHEDULER = Path("/proc/self/schedstat")
SHARED_MEMORY = Path("/dev/shm")


class Check(msgspec.Struct, frozen=True):
    """One thing an audit can use: whether it works here, and what was found or why not."""

    name: str
    works: bool
    found: str
    needed: bool = False  # without it no audit runs


def inspect() -> list[Check]:
    """Look at everything; takes seconds, as torch and Ray are imported for real."""
    return list(_checks())


def open_for_calibration(spec: str, device: str) -> tuple[Meter, str]:
    """The meter to calibrate and the device to load: `device`, else the first GPU, else the CPU.

    Raises:
        MeterError: nothing here measures that device.
    """
    from magneton_dist.meters import open_meter

    device = device or next(iter(_gpus()[0]), "cpu")
    meter, reason = open_meter(spec, device)
    if meter.provenance != "measured":
        meter.close()
        why = reason if spec == "auto" else meter.source
        raise MeterError(f"nothing measures {device}: {why}", where="calibrate", do="see `magneton-dist doctor`")
    return meter, device


def _checks() -> Iterator[Check]:
    yield Check("python", True, f"{platform.python_version()} at {sys.executable}", needed=True)
    yield _tried("torch", _torch, needed=True)
    yield _tried("ray", lambda: _imported("ray"), needed=True)
    yield _tried("linux", _linux, needed=True)
    yield Check("cores", True, f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable")
    yield _tried("memory", _memory)
    yield _tried("run queue", lambda: _readable(SCHEDULER, "delays of a busy CPU can be told from waiting"))
    gpus, reason = _gpus()
    yield Check("gpu", bool(gpus), f"{len(gpus)}: {', '.join(gpus)}" if gpus else reason)
    for gpu in gpus:
        yield _meter("nvml", gpu)
        yield _tried(f"activity {gpu}", partial(_activity, gpu))
        yield _meter("zeus", gpu)
    if gpus:
        yield _tried("kernels by cupti", _cupti)
    else:
        yield _meter("zeus", "0")
    for spec in ("rapl", "hwmon", "pmd2", "pmd-usb"):
        yield _meter(spec, "cpu")
    yield _meter("modelled:h200", "cpu")
    yield _meter("auto", gpus[0] if gpus else "cpu")
    yield _tried("perf", _perf)


def _tried(name: str, look: Callable[[], str], needed: bool = False) -> Check:
    try:
        return Check(name, True, look(), needed)
    except (MagnetonError, ImportError, OSError) as error:
        return Check(name, False, str(error), needed)


def _imported(module: str) -> str:
    import_module(module)
    return version(module)


def _torch() -> str:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise ImportError("torch was built without torch.distributed")
    backends = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return f"{torch.__version__}, {cuda}, {' and '.join(backends)}"


def _linux() -> str:
    if sys.platform != "linux":
        raise OSError(f"{sys.platform}: processes are supervised by means that only Linux has")
    return platform.release()


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shared = os.statvfs(SHARED_MEMORY)
    free = shared.f_bavail * shared.f_frsize
    return f"{total / 2**30:.0f} GiB, {free / 2**30:.1f} GiB of shared memory free"


def _readable(path: Path, use: str) -> str:
    path.read_bytes()
    return f"{path} is readable: {use}"


def _gpus() -> tuple[list[str], str]:
    from magneton_dist.meters import visible_gpus

    try:
        visible = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    except MagnetonError as error:
        return [], str(error)
    return list(visible.uuids), "; ".join(visible.notes) or "none visible"


def _meter(spec: str, device: str) -> Check:
    from magneton_dist.meters import open_meter

    name = f"meter {spec}" + (f" {device}" if device != "cpu" else "")
    try:
        meter, reason = open_meter(spec, device)
    except MagnetonError as error:
        return Check(name, False, str(error))
    meter.close()
    found = f"{meter.name}; {reason}" if spec == "auto" else meter.source
    return Check(name, meter.provenance != "unmeasured", found)


def _cupti() -> str:
    """Kernels by Kineto need no more than torch and a GPU; CUPTI's own records need its library."""
    import torch  # noqa: F401 - brings the library along, and loads it where it needs it

    from magneton_dist.tracer.cupti import CuptiError, version

    try:
        return f"CUPTI {version()}; one profiler at a time may use it"
    except CuptiError as error:
        raise OSError(f"{error}: torch.profiler captures kernels instead (capture.kernels.by: kineto)") from error


def _activity(gpu: str) -> str:
    from magneton_dist.meters import NvmlMeter

    meter = NvmlMeter(gpu)
    try:
        meter.activity()
        return "GPM tells how busy its SMs, tensor cores, DRAM and NVLink are: waiting from transfer"
    finally:
        meter.close()


def _perf() -> str:
    level = int(PARANOID.read_text())
    if level > 2 and os.geteuid() != 0:
        raise OSError(f"perf_event_paranoid is {level}: closed to users (sysctl it to 2)")
    return f"perf_event_paranoid is {level}"

