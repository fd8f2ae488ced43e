"""Settings of the process that can change which kernels run: torch's switches, environment, versions.

Nothing here sets anything, imports a library, or touches a device that the job has not initialised.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable

import torch

from magneton_dist.tracer.model import Model
from magneton_dist.tracer.secrecy import WITHHELD, looks_secret, secret_name
from magneton_dist.tracer.spool import Spool

ENVIRONMENT = (
    "TORCH_",
    "PYTORCH_",
    "NCCL_",
    "GLOO_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "ONEDNN_",
    "MKL_",
    "OMP_",
    "DNNL_",
    "KMP_",
    "ATEN_",
    "VLLM_",
    "SGLANG_",
)
LONGEST_VALUE = 500

_DDP_ARGUMENTS = (
    "broadcast_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "bucket_bytes_cap",
    "require_forward_param_sync",
    "mixed_precision",
    "skip_all_reduce_unused_params",
    "init_sync",
)

_FSDP_ARGUMENTS = (
    "sharding_strategy",
    "mixed_precision",
    "cpu_offload",
    "backward_prefetch",
    "forward_prefetch",
    "limit_all_gathers",
    "_use_orig_params",
)
_FULLY_SHARD_ARGUMENTS = ("mp_policy", "offload_policy")

_SWITCHES = (
    "get_num_threads",
    "get_num_interop_threads",
    "get_default_dtype",
    "get_default_device",
    "get_float32_matmul_precision",
    "get_deterministic_debug_mode",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_autocast_cache_enabled",
    "is_anomaly_enabled",
)
_ATTENTION = (
    "flash_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "math_sdp_enabled",
    "cudnn_sdp_enabled",
    "fp16_bf16_reduction_math_sdp_allowed",
)
_NO_LIBRARIES = {"torch", *getattr(sys, "stdlib_module_names", ())}  # Python 3.10 and newer know their names
_NO_SETTINGS = ("_get_thread_name", "_get_torch_function_state")
# Asked on some builds, these look at the device's architecture.
_DEVICE_GETTERS = ("_get_blas_preferred_backend", "_get_rocm_fa_preferred_backend")

# CUctx_flags of the driver; "auto" polls unless there are more contexts than cores
_SCHEDULE_MASK = 0x07
_SCHEDULES = {0: "auto", 1: "spin", 2: "yield", 4: "blocking"}

Knob = tuple[str, str]


def emit_knobs(spool: Spool) -> None:
    """Write one `knob` row per setting of this process; what cannot be read is left out and said once."""
    for source in (_environment, _versions, _backends, _switches, _devices, _distributed, _model):
        _emit(spool, source)


def _emit(spool: Spool, source: Callable[[], Iterator[Knob]]) -> None:
    try:
        for name, value in source():
            spool.put("knob", name, value[:LONGEST_VALUE])
    except Exception as error:
        spool.fault("knobs", error)


def _environment() -> Iterator[Knob]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(ENVIRONMENT) and not secret_name(name):
            yield f"env.{name}", WITHHELD if looks_secret(value) else value


def _versions() -> Iterator[Knob]:
    yield "version.python", platform.python_version()
    yield "version.torch", torch.__version__
    yield "version.torch.git", str(torch.version.git_version)
    yield "version.torch.cuda", str(torch.version.cuda)
    for name, module in sorted(sys.modules.items()):
        # vars, not getattr: a lazy module would import what it stands for
        version = vars(module).get("__version__") if isinstance(module, ModuleType) else None
        if isinstance(version, str) and name.isidentifier() and name not in _NO_LIBRARIES:
            yield f"version.{name}", version


def _backends() -> Iterator[Knob]:
    """Settings of ``torch.backends``: descriptors on the modules' classes, objects with a `__getattr__`."""
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("torch.backends") or module is None:
            continue
        for kind in type(module).__mro__:
            for attribute, member in vars(kind).items():
                if type(member).__name__ == "ContextProp":
                    yield from _read(f"{name}.{attribute}", member.getter)
                else:
                    yield from _hidden(f"{name}.{attribute}", member)
        for attribute, member in vars(module).items():
            yield from _hidden(f"{name}.{attribute}", member)


def _hidden(name: str, owner: Any) -> Iterator[Knob]:
    """Settings that an object in ``torch.backends`` knows only inside its `__getattr__`."""
    kind = type(owner)
    # The cuFFT plan cache asks for the current device, which would create a CUDA context.
    if not kind.__module__.startswith("torch.backends") or kind.__name__.startswith("cuFFT"):
        return
    for parent in kind.__mro__:
        code = getattr(vars(parent).get("__getattr__"), "__code__", None)
        for word in code.co_consts if code and not isinstance(owner, ModuleType) else ():
            if isinstance(word, str) and word.isidentifier():
                yield from _read(f"{name}.{word}", lambda word=word: getattr(owner, word))  # type: ignore[misc]


def _switches() -> Iterator[Knob]:
    for name in _SWITCHES:
        yield from _read(f"torch.{name}", getattr(torch, name, None))
    yield from _read("torch.autograd.profiler_enabled", torch._C._autograd._profiler_enabled)
    yield from _read("torch.backends.mha.get_fastpath_enabled", torch.backends.mha.get_fastpath_enabled)
    for name in _ATTENTION:
        yield from _read(f"torch.backends.cuda.{name}", getattr(torch.backends.cuda, name, None))
    for name in dir(torch._C):
        if not name.startswith("_get_") or not hasattr(torch._C, f"_set_{name[5:]}"):
            continue
        if name not in _NO_SETTINGS and (name not in _DEVICE_GETTERS or _on_gpu()):
            yield from _read(f"torch._C.{name}", getattr(torch._C, name))


def _read(name: str, getter: Callable[[], Any] | None) -> Iterator[Knob]:
    if getter is None:
        return
    try:
        value = getter()
    except Exception:  # takes arguments, or belongs to a library that this build lacks
        return
    if isinstance(value, (bool, int, float, str, list)) or type(value).__module__.startswith("torch"):
        yield name, str(value)


def _devices() -> Iterator[Knob]:
    """The job's GPU, if it has a context on one already."""
    if _on_gpu():
        device = torch.cuda.current_device()
        yield "cuda.device", torch.cuda.get_device_name(device)
        yield "cuda.capability", ".".join(map(str, torch.cuda.get_device_capability(device)))
        yield "cuda.allocator", torch.cuda.get_allocator_backend()
        yield from _waiting(device)


def _waiting(device: int) -> Iterator[Knob]:
    """How a thread that waits for the device spends its time; nothing where the driver is not NVIDIA's.

    Asked of the driver, which makes no context for it.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(handle), device):
        return
    if driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active)) or not active.value:
        return
    yield "cuda.schedule", _SCHEDULES.get(flags.value & _SCHEDULE_MASK, str(flags.value))


def _on_gpu() -> bool:
    return torch.cuda.is_initialized()  # type: ignore[no-any-return]


def _distributed() -> Iterator[Knob]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield "distributed.backend", str(torch.distributed.get_backend())
        yield "distributed.world_size", str(torch.distributed.get_world_size())


def _model() -> Iterator[Knob]:
    """Arguments of DistributedDataParallel, FSDP and the optimizers."""
    model = Model.of_this_process()
    yield from _data_parallel(model)
    yield from _fully_sharded(model)
    yield from _optimizers(model)


def _data_parallel(model: Model) -> Iterator[Knob]:
    for number, module in enumerate(model.data_parallel):
        prefix = "ddp" if number == 0 else f"ddp{number}"
        for name in _DDP_ARGUMENTS:
            if name in vars(module):
                yield f"{prefix}.{name}", _text(vars(module)[name])
        if getattr(module, "find_unused_parameters", False) and hasattr(module, "_get_ddp_logging_data"):
            unused = module._get_ddp_logging_data().get("unused_parameter_size")
            if unused is not None:  # from the second step on
                yield f"{prefix}.unused_parameter_bytes", str(unused)


def _fully_sharded(model: Model) -> Iterator[Knob]:
    """Arguments of FSDP, either kind; of modules that are sharded alike, the first one's."""
    seen: set[tuple[Knob, ...]] = set()
    for module in (module for _, root in model.roots for module in root.modules()):
        arguments = tuple(_sharding(module))
        if arguments and arguments not in seen:
            prefix = f"fsdp{len(seen) or ''}"
            seen.add(arguments)
            yield from ((f"{prefix}.{name}", value) for name, value in arguments)


def _sharding(module: torch.nn.Module) -> Iterator[Knob]:
    kinds = [kind.__name__ for kind in type(module).__mro__]
    if "FullyShardedDataParallel" in kinds:
        for name in _FSDP_ARGUMENTS:
            if name in vars(module):
                yield name.lstrip("_"), _text(vars(module)[name])
    elif "FSDPModule" in kinds:
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        # torch 2.11 has one group a module
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in filter(None, groups[:1]):
            for name in _FULLY_SHARD_ARGUMENTS:
                yield name, _text(getattr(group, name, None))
            yield "reshard_after_forward", str(getattr(group, "post_forward_mesh_info", None) is not None)


def _optimizers(model: Model) -> Iterator[Knob]:
    for number, optimizer in enumerate(model.optimizers):
        prefix = "optimizer" if number == 0 else f"optimizer{number}"
        yield f"{prefix}.class", type(optimizer).__qualname__
        for index, group in enumerate(optimizer.param_groups):
            for name, value in group.items():
                if name not in ("params", "param_names") and not secret_name(name):
                    yield f"{prefix}.group{index}.{name}", _text(value)


def _text(value: Any) -> str:
    # A learning rate may be a tensor on a device: reading it would synchronise.
    if isinstance(value, torch.Tensor):
        return f"tensor on {value.device}" if value.device.type != "cpu" else str(value.tolist())
    text = str(value)
    return WITHHELD if looks_secret(text) else text
