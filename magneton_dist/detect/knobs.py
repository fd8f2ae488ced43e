"""Settings of a run that are known to cost something: advice, until `explain` or a second variant proves it.

Only settings that nobody needs for a result are named, and only where somebody has set them: a job with torch's own
defaults gets no advice.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    "ddp.find_unused_parameters": (
        ("True",), "every step walks the graph for parameters without gradients: leave it out if all have one",
    ),
}  # fmt: skip


def advice(variant: str, knobs: Mapping[str, str]) -> list[str]:
    """What the settings of a variant (table `KNOBS`) cost, in words; empty where none is costly."""
    return [
        f"{variant}: advice, not proved: {name.removeprefix('env.')}={knobs[name]}: {what}"
        for name, (costly, what) in _COSTLY.items()
        if knobs.get(name) in costly
    ]
