"""Settings of a run that are known to cost something: advice, until `explain` or a second variant proves it.

Only settings that nobody needs for a result are named, and only where somebody has set them: a job with torch's own
defaults gets no advice. What they cost is not known from one run, so no joules are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_ON = ("1", "True", "true", "yes", "ON", "on")
# setting -> values that cost something, and what they do and what to do about it
_COSTLY: dict[str, tuple[tuple[str, ...], str]] = {
    "env.CUDA_LAUNCH_BLOCKING": (_ON, "the host waits for every kernel, the device idles in between: unset it"),
    "env.PYTORCH_NO_CUDA_MEMORY_CACHING": (_ON, "every tensor's memory is asked of the driver, which waits: unset it"),
    "env.TORCH_NCCL_BLOCKING_WAIT": (_ON, "the host stands still in every collective: unset it"),
    "env.NCCL_P2P_DISABLE": (_ON, "GPUs of a node exchange through the host's memory: unset it where P2P works"),
    "env.NCCL_SHM_DISABLE": (_ON, "GPUs of a node exchange through the network: unset it"),
    "env.NCCL_IB_DISABLE": (_ON, "nodes exchange through TCP: unset it where InfiniBand or RoCE works"),
    "env.TORCH_DISTRIBUTED_DEBUG": (
        ("DETAIL",), "all ranks compare notes before every collective: unset it once the job works",
    ),
    "torch.is_anomaly_enabled": (
        ("True",), "autograd keeps every operator's stack and looks for NaN: torch.autograd.set_detect_anomaly(False)",
    ),
    "torch.are_deterministic_algorithms_enabled": (
        ("True",), "slower kernels stand in for others: leave it out where runs need not repeat bit by bit",
    ),
    "torch.autograd.profiler_enabled": (
        ("True",), "a profiler was on when the warm-up ended: let it record a few steps only, by a schedule",
    ),
    "ddp.find_unused_parameters": (
        ("True",), "every step walks the graph for parameters without gradients: leave it out if all have one",
    ),
}  # fmt: skip
_ALL_USED = "every step walks the graph for parameters without gradients, and torch found none: leave it out"
_UNUSED_BYTES = "ddp.unused_parameter_bytes"

# what a line of source that sets it looks like; a variable of the environment by its name
_SET_BY = {
    "torch.is_anomaly_enabled": r"detect_anomaly\(",
    "torch.are_deterministic_algorithms_enabled": r"use_deterministic_algorithms\(",
    "torch.autograd.profiler_enabled": r"profiler\.(profile|emit_nvtx|emit_itt)\(|\bprofile\(",
    "ddp.find_unused_parameters": r"find_unused_parameters",
}
_MOST_SOURCE_BYTES = 1 << 20


def advice(variant: str, knobs: Mapping[str, str], sources: Iterable[Path] = ()) -> list[str]:
    """What the settings of a variant cost, in words; empty where none is costly.

    Args:
        variant: whose.
        knobs: table `KNOBS`.
        sources: files of the job, in which the line that sets something is looked for; what is not there is left out.
    """
    costly = {name: does for name, (values, does) in _COSTLY.items() if knobs.get(name) in values}
    found_unused = knobs.get(_UNUSED_BYTES)
    if found_unused is not None and "ddp.find_unused_parameters" in costly:
        if found_unused == "0":
            costly["ddp.find_unused_parameters"] = _ALL_USED
        else:  # without it, DDP would refuse the second step
            del costly["ddp.find_unused_parameters"]
    texts = _read(sources) if costly else {}
    return [
        f"{variant}: advice, not proved: {name.removeprefix('env.')}={knobs[name]}{_set_at(name, texts)}: {does}"
        for name, does in costly.items()
    ]


def _read(sources: Iterable[Path]) -> dict[Path, list[str]]:
    texts = {}
    for path in sources:
        try:
            if path.stat().st_size <= _MOST_SOURCE_BYTES:
                texts[path] = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # the job ran on another machine, or its source is gone: the line is not known
            continue
    return texts


def _set_at(name: str, texts: Mapping[Path, list[str]]) -> str:
    """`` (train.py:31)``: the only line of the job's source that can have set it; empty where that is not known."""
    by = re.compile(_SET_BY.get(name, rf"\b{name.removeprefix('env.')}\b"))
    lines = [
        f"{path.name}:{number}"
        for path, text in texts.items()
        for number, line in enumerate(text, start=1)
        if by.search(line.partition("#")[0]) and "False" not in line and not line.lstrip().startswith("import ")
    ]
    return f" ({lines[0]})" if len(lines) == 1 else ""
