"""CUDA_VISIBLE_DEVICES read as CUDA reads it: which physical GPUs, in which order.

NVML knows nothing of that variable, so a rank's devices are found here, by UUID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Visible:
    """Physical GPUs that a process sees.

    Attributes:
        uuids: UUID of the physical GPU of each visible device, in CUDA's order; slices of one GPU repeat it.
        shared: UUIDs of which only a MIG slice is visible; their energy is not the process's alone.
        notes: what could not be understood, in words.
    """

    uuids: tuple[str, ...]
    shared: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def visible_devices(value: str | None, gpus: Sequence[str], migs: Mapping[str, str] | None = None) -> Visible:
    """Resolve the text of CUDA_VISIBLE_DEVICES.

    Args:
        value: the variable's text: indices, GPU UUIDs or unique prefixes of them, MIG ids; None when unset.
        gpus: UUIDs of the machine's GPUs in index order (NVML's, which is the PCI bus order).
        migs: MIG UUID -> UUID of the GPU it is a slice of.

    Like CUDA it stops at the first entry that names no device; what it left out is in `notes`.
    """
    if value is None:
        return Visible(tuple(gpus))
    uuids: list[str] = []
    shared: set[str] = set()
    entries = [entry.strip() for entry in value.split(",")] if value.strip() else []
    for position, entry in enumerate(entries):
        uuid = find_gpu(entry, gpus, migs or {})
        if uuid is None:
            if entry in {"-1", ""}:
                break  # the documented ways to hide the rest
            left = ",".join(entries[position:])
            return Visible(
                tuple(uuids), frozenset(shared),
                (f"CUDA_VISIBLE_DEVICES: {entry!r} names no GPU here; {left!r} is not visible",),
            )
        if entry.startswith("MIG-"):
            shared.add(uuid)
        uuids.append(uuid)
    return Visible(tuple(uuids), frozenset(shared))


def find_gpu(name: str, gpus: Sequence[str], migs: Mapping[str, str]) -> str | None:
    """UUID of the physical GPU that `name` means, or None.

    `name` is an index, a UUID with or without ``GPU-``, a MIG id, or a prefix of one (a unique one).
    """
    if name.isdecimal():
        return gpus[int(name)] if int(name) < len(gpus) else None
    if name.startswith("MIG-GPU-"):  # drivers before 470: MIG-GPU-<uuid>/<gpu instance>/<compute instance>
        name = name.removeprefix("MIG-").partition("/")[0]
    elif name.startswith("MIG-"):
        return _unique({parent for mig, parent in migs.items() if mig.startswith(name)})
    elif name and not name.startswith("GPU-"):
        name = f"GPU-{name}"  # torch leaves the prefix out
    if not name.removeprefix("GPU-"):
        return None
    return _unique({uuid for uuid in gpus if uuid.startswith(name)})


def _unique(found: set[str]) -> str | None:
    return found.pop() if len(found) == 1 else None
