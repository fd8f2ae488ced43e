"""Meters: where watts and joules come from, one file per source, behind one interface."""

from __future__ import annotations

from magneton_dist.errors import ConfigError, MeterError
from magneton_dist.meters.meter import Conditions, Meter, NullMeter, Reading
from magneton_dist.meters.modelled import ModelledMeter
from magneton_dist.meters.nvml import NvmlMeter, visible_gpus
from magneton_dist.meters.profile import Profile, Watts, load_profile
from magneton_dist.meters.rapl import RaplMeter
from magneton_dist.meters.sampler import Sampler

__all__ = [
    "Conditions", "Meter", "ModelledMeter", "NullMeter", "NvmlMeter", "Profile", "RaplMeter", "Reading",
    "Sampler", "Watts", "load_profile", "open_meter", "visible_gpus",
]  # fmt: skip

_MODELLED = "modelled:"
_FALLBACK = "h200"


def open_meter(spec: str, device: str) -> tuple[Meter, str]:
    """Open the meter of one device.

    Args:
        spec: ``auto``, ``nvml``, ``rapl``, ``null`` or ``modelled:PROFILE`` (a name or a path).
        device: GPU UUID as the tracer reports it, or ``cpu``.

    Returns:
        The meter, and why it is this one. ``auto`` takes NVML for a GPU, RAPL for a CPU run, and models where
        that does not work.

    Raises:
        ConfigError: there is no such meter or profile.
        MeterError: the meter asked for does not work here; ``auto`` never raises it.
    """
    if spec.startswith(_MODELLED):
        return ModelledMeter(load_profile(spec.removeprefix(_MODELLED)), device), "as configured"
    if spec == "auto":
        return _auto(device)
    if spec == "nvml":
        return NvmlMeter(device), "as configured"
    if spec == "rapl":
        return RaplMeter(), "as configured"
    if spec == "null":
        return NullMeter(device), "as configured"
    raise ConfigError(
        f"no such meter: {spec}", where="energy.meter", do="use auto, nvml, rapl, null or modelled:PROFILE"
    )


def _auto(device: str) -> tuple[Meter, str]:
    try:
        if device == "cpu":
            return RaplMeter(), "auto: the run uses no GPU and RAPL is readable"
        meter = NvmlMeter(device)
        if meter.provenance == "measured":
            return meter, "auto: NVML reads this GPU"
        meter.close()
        reason = meter.source
    except MeterError as error:
        reason = str(error)
    return ModelledMeter(load_profile(_FALLBACK), device), f"auto: modelled, because {reason}"
