"""From which functions an operator comes to kernels and to other operators: the stack at each of them.

Runs in fresh processes only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from magneton_dist.diagnosis.native.symbols import Libraries, Library, demangled
from magneton_dist.diagnosis.native.traps import RIP, Registers, Traps

LIBRARY = "libtorch_cpu.so"
# Where kernels begin: of ATen, of oneDNN, of the math library, of NNPACK. A NUL ends a whole name.
KERNELS = (
    "_ZN2at6native16DispatchStubImpl12get_call_ptr", "_ZN2at8internal15invoke_parallel", "dnnl_primitive_execute\0",
    "nnp_convolution_inference\0", "sgemm_\0", "dgemm_\0", "cgemm_\0", "zgemm_\0", "sgemv_\0", "dgemv_\0",
    "sdot_\0", "ddot_\0", "cblas_sgemm\0", "cblas_sgemm_batch\0", "cblas_dgemm_batch\0", "cblas_gemm_bf16bf16f32\0",
    "cblas_gemm_f16f16f32\0", "gemm_bf16bf16f32_\0",
)  # fmt: skip
_OPERATORS, _CALL = "_ZN2at4_ops", "4callE"
_MOST = 2000  # launches that are kept
_DEEPEST = 256  # frames


def launches(call: Callable[[], Any]) -> dict[str, Any]:
    """Stacks of functions of torch's, outermost first, in the order of the launches.

    Returns:
        `functions`: [library, offset, name] of each; `stacks`: of each launch, numbers of its functions.

    Raises:
        NotPossibleError: code cannot be followed here.
    """
    libraries = Libraries()
    library = libraries.named(LIBRARY)
    begins = _begins(library)
    libc = ctypes.PyDLL(None)
    frames = (ctypes.c_void_p * _DEEPEST)()
    libc.backtrace(frames, _DEEPEST)  # loads what it needs, which must not happen in the handler
    found: list[list[int]] = []

    def stopped(registers: Registers) -> None:
        if len(found) < _MOST:
            addresses = [frame or 0 for frame in frames[: libc.backtrace(frames, _DEEPEST)]]
            found.append(addresses[addresses.index(registers[RIP]) :])

    traps = Traps(stopped)
    traps.arm(library.base + start for start in begins)
    traps.run(call)
    numbers: dict[tuple[str, int, str], int] = {}
    known: dict[int, int | None] = {}
    for stack in found:
        for depth, address in enumerate(stack):
            if address not in known:
                function = libraries.function_at(address - (depth > 0))  # a frame below returns behind its call
                name = None if function is None else (function.library, function.start, demangled(function.symbol))
                known[address] = None if name is None else numbers.setdefault(name, len(numbers))
    stacks = [[known[address] for address in reversed(stack) if known[address] is not None] for stack in found]
    return {"functions": list(numbers), "stacks": stacks}


def prepare() -> None:
    """Read names once, before processes are forked that need them.

    Raises:
        NotPossibleError: the library is not loaded, or has no names.
    """
    _begins(Libraries().named(LIBRARY))


@cache
def _begins(library: Library) -> list[int]:
    """Offsets of functions that are launches: kernels, and operators as other functions call them."""
    operators = (function for function in library.named([_OPERATORS]) if _CALL in function.symbol)
    return [function.start for function in (*library.named(KERNELS), *operators)]
