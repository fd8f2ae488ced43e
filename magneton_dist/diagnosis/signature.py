"""Which kernels a call runs: ATen operators, oneDNN and MKL primitives, kernels on a GPU.

Runs in fresh processes only: standard library and torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

_FPMATH = re.compile(r"attr-fpmath:(\w+)")
_MKL_CALL = re.compile(r"MKL_VERBOSE (\w+)\(")
_MKL_MODE = re.compile(r"\b(CNR:\S+|NThr:\d+)")


def signature(call: Callable[[], Any], *, gpu: bool) -> dict[str, list[str]]:
    """What `call` runs, in three layers, in order of execution; it has run before.

    Args:
        call: runs the operator once.
        gpu: tensors are on a GPU: its kernels are wanted, too.
    """
    lines: list[str] = []
    with _standard_output() as read, ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            if library.is_available():
                stack.enter_context(library.verbose(library.VERBOSE_ON))
        call()
        stack.close()
        lines = read()
    operators, kernels = _profiled(call, gpu=gpu)
    return {"operators": operators, "primitives": list(primitives(lines)), "kernels": kernels}


def measure_clock() -> None:
    """What MKL does before the first line that it prints: it measures the processor's clock, for up to a second.

    A process that does so before it is forked spares those that are forked of it. No threads come of it.
    """
    with suppress(AttributeError):  # no MKL, or another one: lines may come later, and are the same
        ctypes.CDLL(torch._C.__file__).mkl_serv_get_clocks_frequency()


def primitives(lines: list[str]) -> Iterator[str]:
    """oneDNN and MKL calls out of what the libraries print, each once, in order.

    A oneDNN line reads ``onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,...``, an MKL line
    ``MKL_VERBOSE SGEMM(N,N,...) 1.2ms CNR:OFF Dyn:1 FastMM:1 TID:0 NThr:1``.
    """
    seen = set()
    for line in lines:
        name = _onednn(line) if line.startswith("onednn_verbose") else _mkl(line)
        if name and name not in seen:
            seen.add(name)
            yield name


def _onednn(line: str) -> str:
    fields = line.split(",")
    if "exec" not in fields:
        return ""
    kind, implementation = fields[fields.index("exec") + 2 :][:2]
    precision = _FPMATH.search(line)
    return f"onednn:{kind}:{implementation}" + (f":{precision[1]}" if precision else "")


def _mkl(line: str) -> str:
    call = _MKL_CALL.match(line)
    return ":".join(["mkl", call[1], *_MKL_MODE.findall(line)]) if call else ""


def _profiled(call: Callable[[], Any], *, gpu: bool) -> tuple[list[str], list[str]]:
    # not torch.profiler: it imports the compiler first, which takes seconds in every process. Without Kineto this one
    # times operators by CUDA events and knows no kernels.
    with torch.autograd.profiler.profile(use_device="cuda" if gpu else None, use_kineto=gpu) as profile:
        call()
        if gpu:
            torch.cuda.synchronize()
    events = sorted(profile.function_events or (), key=lambda event: event.time_range.start)
    operators = [event.name for event in events if event.name.startswith("aten::")]
    return operators, [event.name for event in events if event.device_type.name == "CUDA"]


@contextmanager
def _standard_output() -> Iterator[Callable[[], list[str]]]:
    """Catch what C libraries print; yields a function that returns the lines so far."""
    libc = ctypes.CDLL(None)

    def read() -> list[str]:
        libc.fflush(None)
        size = os.fstat(caught).st_size
        return os.pread(caught, size, 0).decode(errors="replace").splitlines()

    sys.stdout.flush()
    libc.fflush(None)
    caught, kept = os.memfd_create("output"), os.dup(1)
    os.dup2(caught, 1)
    try:
        yield read
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(caught)
