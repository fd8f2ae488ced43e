"""Meters: where watts and joules come from, one file per source, behind one interface.

Profiles, which need more packages than meters do, are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magneton_dist.errors import ConfigError, MeterError
from magneton_dist.meters.hwmon import HwmonMeter
from magneton_dist.meters.meter import Conditions, Meter, NullMeter, Reading
from magneton_dist.meters.modelled import ModelledMeter
from magneton_dist.meters.nvml import NvmlMeter, visible_gpus
from magneton_dist.meters.pmd import PMD2, PMD_USB, PmdMeter
from magneton_dist.meters.rapl import RaplMeter
from magneton_dist.meters.sampler import Sampler
from magneton_dist.meters.zeus import ZeusMeter

if TYPE_CHECKING:
    from magneton_dist.meters.profile import Profile, Watts, load_profile

__all__ = [
    "PMD2", "PMD_USB", "Conditions", "HwmonMeter", "Meter", "ModelledMeter", "NullMeter", "NvmlMeter", "PmdMeter",
    "Profile", "RaplMeter", "Reading", "Sampler", "Watts", "ZeusMeter", "load_profile", "open_meter", "visible_gpus",
]  # fmt: skip

_FALLBACK = "h200"


def __getattr__(name: str) -> Any:
    if name not in ("Profile", "Watts", "load_profile"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from magneton_dist.meters import profile

    return getattr(profile, name)


def _modelled(profile: str, device: str) -> ModelledMeter:
    from magneton_dist.meters.profile import load_profile

    return ModelledMeter(load_profile(profile), device)


def open_meter(spec: str, device: str) -> tuple[Meter, str]:
    """Open the meter of one device.

    Args:
        spec: ``auto``, ``nvml``, ``rapl``, ``hwmon``, ``zeus``, ``null``, ``pmd2`` or ``pmd-usb`` (``:PORT`` where
            there are several), or ``modelled:PROFILE`` (a name or a path).
        device: GPU UUID as the tracer reports it, or ``cpu``.

    Returns:
        The meter, and why it is this one. ``auto`` takes NVML for a GPU, RAPL for a CPU run, and models where
        that does not work.

    Raises:
        ConfigError: there is no such meter or profile.
        MeterError: the meter asked for does not work here; ``auto`` never raises it.
    """
    if spec == "auto":
        return _auto(device)
    return _named(spec, device), "as configured"


def _named(spec: str, device: str) -> Meter:
    match spec.split(":", 1):
        case ["nvml"]:
            return NvmlMeter(device)
        case ["rapl"]:
            return RaplMeter()
        case ["hwmon"]:
            return HwmonMeter()
        case ["pmd2", *port]:
            return PmdMeter(PMD2, *port)
        case ["pmd-usb", *port]:
            return PmdMeter(PMD_USB, *port)
        case ["zeus"]:
            return ZeusMeter(device)
        case ["null"]:
            return NullMeter(device)
        case ["modelled", profile]:
            return _modelled(profile, device)
    names = "auto, nvml, rapl, hwmon, pmd2[:PORT], pmd-usb[:PORT], zeus, null or modelled:PROFILE"
    raise ConfigError(f"no such meter: {spec}", where="energy.meter", do=f"use {names}")


def _auto(device: str) -> tuple[Meter, str]:
    model = ""
    try:
        if device == "cpu":
            return RaplMeter(), "auto: the run uses no GPU and RAPL is readable"
        meter = NvmlMeter(device)
        if meter.provenance == "measured":
            return meter, "auto: NVML reads this GPU"
        meter.close()
        reason, model = meter.source, meter.model
    except MeterError as error:
        reason = str(error)
    from magneton_dist.meters.profile import profile_of

    known = profile_of(model)
    if known is not None:
        return ModelledMeter(known, device), f"auto: modelled as {model}, because {reason}"
    stands_in = "" if device == "cpu" else f" in place of {model or 'a GPU that nothing names'}"
    return _modelled(_FALLBACK, device), f"auto: modelled as {_FALLBACK}{stands_in}, because {reason}"
