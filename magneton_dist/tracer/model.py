"""What the job trains: its modules and optimizers, and the names of their tensors.

They are found by walking the objects that the garbage collector tracks, once after a traced step or at the
end of the run. Global module hooks would tell earlier, but they slow every call and change the guards of
compiled functions.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

# Wrappers put themselves into the names of what they hold; without them a model always has the same names.
WRAPPER_NAMES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Owned(NamedTuple):
    """A tensor that the model or an optimizer holds: its role, the name of its slot, and itself."""

    role: str
    slot: str
    tensor: torch.Tensor


class Model:
    """The modules of the process that no other module holds, with prefixes of their names, and optimizers."""

    def __init__(
        self, roots: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.roots = _with_prefixes(roots, optimizers)
        self.optimizers = optimizers
        modules = [module for root in roots for module in root.modules()]
        self.data_parallel = [module for module in modules if isinstance(module, DistributedDataParallel)]

    @classmethod
    def of_this_process(cls, optimizers: Sequence[torch.optim.Optimizer] = ()) -> Model:
        """Walk the objects of the process for it, about 0.1 µs each; `optimizers`, if known, in this order."""
        kinds = _subclasses(torch.nn.Module)
        steppers = _subclasses(torch.optim.Optimizer)
        modules: list[torch.nn.Module] = []
        found: list[torch.optim.Optimizer] = []
        for candidate in gc.get_objects():
            kind = type(candidate)  # not isinstance: the __class__ of a proxy is user code
            if kind in kinds:
                modules.append(candidate)
            elif kind in steppers:
                found.append(candidate)
        held = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
        # The collector keeps no order that would be the same in another run.
        found.sort(key=lambda optimizer: (type(optimizer).__name__, -_size(numbered([optimizer]))))
        return cls([module for module in modules if id(module) not in held], optimizers or found)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters of the modules by name, then the optimizers' others as ``group.index``."""
        known = set()
        parameter: torch.Tensor
        for prefix, root in self.roots:
            for name, parameter in root.named_parameters():
                known.add(id(parameter))
                yield _clean(prefix, name), parameter
        for name, parameter in numbered(self.optimizers):
            if id(parameter) not in known:
                yield name, parameter

    def owned(self) -> Iterator[Owned]:
        """Every tensor with a role; of a sharded one, the shard that this rank stores."""
        names = {}
        for name, parameter in self.parameters():
            names[id(parameter)] = name
            if is_lazy(parameter):
                continue
            yield Owned("parameter", name, local(parameter))
            if parameter.grad is not None:
                yield Owned("gradient", name, local(parameter.grad))
        for prefix, root in self.roots:
            for name, buffer in root.named_buffers():
                yield Owned("buffer", _clean(prefix, name), local(buffer))
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for entry in state.values() if isinstance(state, dict) else ():
                    if isinstance(entry, torch.Tensor):
                        yield Owned("optimizer_state", names.get(id(parameter), "?"), local(entry))


def numbered(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of the optimizers as ``group.index``, groups counted through all optimizers."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for number, group in enumerate(groups):
        for index, parameter in enumerate(group["params"]):
            yield f"{number}.{index}", parameter


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank stores of `tensor`: the local shard of a DTensor, else `tensor` itself."""
    shard: Any = getattr(tensor, "_local_tensor", tensor)
    return shard if isinstance(shard, torch.Tensor) else tensor


def _subclasses(base: type) -> set[type]:
    found: set[type] = {base}
    subclasses: list[type] = base.__subclasses__()
    for kind in subclasses:
        found |= _subclasses(kind)
    return found


def _size(named: Iterable[tuple[str, torch.Tensor]]) -> int:
    return sum(tensor.numel() for _, tensor in named if not is_lazy(tensor))


def _holds_tensors(root: torch.nn.Module) -> bool:
    return next(root.parameters(), None) is not None or next(root.buffers(), None) is not None


def _with_prefixes(
    roots: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> list[tuple[str, torch.nn.Module]]:
    """The root that is trained, if it is one, needs no prefix; any other has the name of its class."""
    trained = {id(parameter) for _, parameter in numbered(optimizers)}
    count = {id(root): sum(id(p) in trained for p in root.parameters()) for root in roots}
    roots = sorted(
        roots, key=lambda root: (-count[id(root)], type(root).__name__, -_size(root.named_parameters()))
    )
    models = [root for root in roots if count[id(root)]] or [root for root in roots if _holds_tensors(root)]
    seen: Counter[str] = Counter()
    prefixed = []
    for root in roots:
        model = root.module if isinstance(root, (DistributedDataParallel, DataParallel)) else root
        kind = type(model).__name__
        seen[kind] += 1
        prefix = kind if seen[kind] == 1 else f"{kind}#{seen[kind]}"
        prefixed.append(("" if models == [root] else prefix, model))
    return prefixed


def _clean(prefix: str, name: str) -> str:
    parts = [part for part in name.split(".") if part not in WRAPPER_NAMES]
    return ".".join([prefix, *parts] if prefix else parts)
