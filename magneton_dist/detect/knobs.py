"""Settings of a run that are known to cost something: advice, until `explain` or a second variant proves it.

Only settings that nobody needs for a result are named, and only where somebody has set them: a job with torch's own
defaults gets no advice. One run does not tell what they cost. Where a setting can only lengthen some states, what the
devices drew in those is a bound, and advice stays silent where that is little; else it says that nothing bounds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magneton_dist.records.audit import EnergyKind, StateShare

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
# of a GPU's job only; and the states that such a setting lengthens, where it does nothing else
_OF_GPUS = ("env.CUDA_", "env.NCCL_", "env.PYTORCH_NO_CUDA_", "env.TORCH_NCCL_")
_LATE, _SLOW = ("idle", "unresolved"), ("transfer", "unresolved")
_LENGTHENS = {
    "env.CUDA_LAUNCH_BLOCKING": _LATE, "env.PYTORCH_NO_CUDA_MEMORY_CACHING": _LATE,
    "env.TORCH_NCCL_BLOCKING_WAIT": _LATE,
    "env.NCCL_P2P_DISABLE": _SLOW, "env.NCCL_SHM_DISABLE": _SLOW, "env.NCCL_IB_DISABLE": _SLOW,
}  # fmt: skip
FLOOR_SHARE = 0.01  # of the run: a bound below it is not worth a reader's time
_UNBOUNDED = "what it costs is not known from one run, nor bounded by it: a second variant without it shows that"
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


@dataclass(frozen=True)
class Spent:
    """What the ranks of a run spent, and on what: enough to bound what a setting costs.

    Attributes:
        by_activity: seconds and joules of all ranks, by what their devices were doing.
        kind: provenance of the joules.
        on_gpus: some rank has one.
    """

    by_activity: Mapping[str, StateShare] = field(default_factory=dict)
    kind: EnergyKind = "unmeasured"
    on_gpus: bool = True

    def bound(self, activities: Iterable[str]) -> tuple[str, float] | None:
        """The most that these can have cost, in words and as a share of the run; None where nothing is known."""
        total = sum(share.s for share in self.by_activity.values())
        those = [self.by_activity[name] for name in activities if name in self.by_activity]
        if total <= 0:
            return None
        seconds, joules = sum(share.s for share in those), [share.j for share in those if share.j is not None]
        all_joules = [share.j for share in self.by_activity.values() if share.j is not None]
        named = " and ".join(name for name in activities if name in self.by_activity)
        what = f"all that its devices spent in {named}" if named else "nothing"
        if len(all_joules) < len(self.by_activity) or sum(all_joules) <= 0:
            return f"at most {seconds:.3g} s of its ranks' time ({what}); joules are unmeasured", seconds / total
        return f"at most {sum(joules):.3g} J {self.kind} ({what})", sum(joules) / sum(all_joules)


def advice(
    variant: str, knobs: Mapping[str, str], sources: Iterable[Path] = (), spent: Spent | None = None
) -> list[str]:
    """What the settings of a variant cost, in words; empty where none is costly.

    Args:
        variant: whose.
        knobs: table `KNOBS`.
        spent: by its ranks; default: not known.
        sources: files of the job, in which the line that sets something is looked for; what is not there is left out.
    """
    costly = {name: does for name, (values, does) in _COSTLY.items() if knobs.get(name) in values}
    found_unused = knobs.get(_UNUSED_BYTES)
    if found_unused is not None and "ddp.find_unused_parameters" in costly:
        if found_unused == "0":
            costly["ddp.find_unused_parameters"] = _ALL_USED
        else:  # without it, DDP would refuse the second step
            del costly["ddp.find_unused_parameters"]
    spent = spent or Spent()
    texts = _read(sources) if costly else {}
    told = []
    for name, does in costly.items():
        known = spent.bound(_LENGTHENS[name]) if name in _LENGTHENS else None
        if (known is not None and known[1] < FLOOR_SHARE) or (name.startswith(_OF_GPUS) and not spent.on_gpus):
            continue
        setting = f"{name.removeprefix('env.')}={knobs[name]}{_set_at(name, texts)}"
        told.append(f"{variant}: advice, not proved: {setting}: {does}; {known[0] if known else _UNBOUNDED}")
    return told


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
