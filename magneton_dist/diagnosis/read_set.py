"""Which of torch's global settings an operator asks for, and what it is told.

Settings live in ``at::Context``, and every part of torch asks its getters through the global offset tables of torch's
libraries. Here the slots of those tables are pointed at functions that note what was asked and hand the question on.
On a GPU, what cuBLAS and cuDNN are told before a kernel is launched is noted, too: that decides, and is on no stack.
x86-64 and ELF only. Runs in fresh processes only: whatever goes wrong ends with them. Standard library, numpy, torch.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LIBRARIES = ("libtorch_cpu.so", "libtorch_python.so", "libtorch_cuda.so")
# Calls that tell cuBLAS or cuDNN how to compute: their second argument says it. They take three at most.
TOLD = ("cublasSetMathMode", "cublasLtMatmulDescCreate", "cudnnSetConvolutionMathType")
_GETTER = re.compile(r"_ZNK2at7Context(\d+)(\w+)")
_CONST_MEMBER = b"_ZNK2at7Context"
# Getters that return through memory or take an object: their registers say nothing.
_OPAQUE = ("sDPPriorityOrder", "allowTF32CuDNN", "float32MatmulPrecision", "SMCarveout", "getAccelerator")
_BY_ARGUMENTS = "float32Precision"  # asked for a backend and an operation
_BACKENDS, _OPERATIONS = 4, 5
_WORD = 0xFFFFFFFF
_CONTEXT = "_ZN2at13globalContextEv"
_JUMP_SLOT, _GLOB_DAT = 7, 6
_RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_PAGE = 4096
_READ_WRITE = 3


class NotPossibleError(Exception):
    """Getters cannot be followed here, and why."""


def read_set(call: Callable[[], Any]) -> dict[str, int]:
    """Getters that `call` asks, with their arguments if they have any, and the least byte of what they answer.

    Those of `TOLD` that it calls are among them, with what they say.

    Raises:
        NotPossibleError: another processor, or libraries that are laid out otherwise.
    """
    return _Recorder().record(call)


def asked_as(name: str, first: int, second: int) -> str:
    """What getter `name` is called in a read-set when it is asked with these two arguments."""
    return f"{name}({first & _WORD}, {second & _WORD})" if name == _BY_ARGUMENTS else name


def getters() -> dict[str, Callable[[], int]]:
    """Every getter that can be asked directly. One that throws ends the process: ask each in a child first."""
    library = ctypes.CDLL(str(_torch_cpu()[0]))
    try:
        context_of = getattr(library, _CONTEXT)
    except AttributeError as error:
        raise NotPossibleError("this torch has no global context") from error
    context_of.restype = ctypes.c_void_p
    context = ctypes.c_void_p(context_of())
    found: dict[str, Callable[[], int]] = {}
    for symbol in sorted({symbol for path, _ in _loaded() for symbol, _ in _slots(path)}):
        name = _name(symbol)
        function = getattr(library, symbol, None) if name else None
        if function is None or not name:
            continue
        function.restype = ctypes.c_ubyte
        if name == _BY_ARGUMENTS:
            for backend in range(_BACKENDS):
                for operation in range(_OPERATIONS):
                    key = asked_as(name, backend, operation)
                    found[key] = lambda f=function, b=backend, o=operation: int(f(context, b, o))  # type: ignore[misc]
        elif symbol.endswith("Ev"):  # takes nothing
            found[name] = lambda f=function: int(f(context))  # type: ignore[misc]
    return found


class _Recorder:
    """Slots of getters, and what they point to while a call is followed."""

    def __init__(self) -> None:
        if platform.machine() != "x86_64":
            raise NotPossibleError(f"getters can be followed on x86-64 only, not on {platform.machine()}")
        self._libc = ctypes.PyDLL(None)
        self._asked: dict[str, int] = {}
        self._hooks: dict[str, Any] = {}
        self._kept: list[Any] = []
        self._patches: list[tuple[int, int, int]] = []  # address of the slot, what to put there, what was there
        _torch_cpu()
        for path, base in _loaded():
            library = ctypes.CDLL(str(path))  # what it asks is in itself, or in what it depends on
            for symbol, offset in _slots(path):
                name = symbol if symbol in TOLD else _name(symbol)
                if not name or not hasattr(library, symbol):
                    continue
                if symbol not in self._hooks:
                    self._hooks[symbol] = self._hook(name, getattr(library, symbol))
                hook = ctypes.cast(self._hooks[symbol], ctypes.c_void_p).value
                assert hook is not None
                self._patches.append((base + offset, hook, ctypes.c_ulong.from_address(base + offset).value))
        if not self._patches:
            raise NotPossibleError("no getter of this torch goes through a table")

    def record(self, call: Callable[[], Any]) -> dict[str, int]:
        self._asked.clear()
        self._point(1)
        try:
            call()
        finally:
            self._point(2)
        return dict(sorted(self._asked.items()))

    def _hook(self, name: str, function: Any) -> Any:
        kind = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        real = kind(address)
        self._kept += [function, real]

        def asked(this: int, first: int, second: int) -> int:
            value = int(real(this, first, second))
            self._asked[asked_as(name, first, second)] = (first & _WORD) if name in TOLD else (value & 0xFF)
            return value

        return kind(asked)

    def _point(self, to: int) -> None:
        for patch in self._patches:
            page = ctypes.c_void_p(patch[0] & ~(_PAGE - 1))
            if self._libc.mprotect(page, ctypes.c_size_t(_PAGE), _READ_WRITE):
                raise NotPossibleError("tables of torch's libraries cannot be written")
            ctypes.c_ulong.from_address(patch[0]).value = patch[to]


def _name(symbol: str) -> str:
    """The getter's name; empty for what is no getter with a plain answer."""
    match = _GETTER.match(symbol)
    name = match[2][: int(match[1])] if match else ""
    return "" if any(opaque in name for opaque in _OPAQUE) else name


def _torch_cpu() -> tuple[Path, int]:
    found = next((each for each in _loaded() if each[0].name == LIBRARIES[0]), None)
    if found is None:
        raise NotPossibleError(f"{LIBRARIES[0]} is not loaded")
    return found


def _loaded() -> list[tuple[Path, int]]:
    """Torch's libraries in this process, and where each begins."""
    found: dict[Path, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        loaded = len(fields) == 6 and "p" in fields[1]  # shared: a file that is only read
        if loaded and fields[5].endswith(LIBRARIES) and int(fields[2], 16) == 0:
            found.setdefault(Path(fields[5]), int(fields[0].partition("-")[0], 16))
    return list(found.items())


def _slots(path: Path) -> Iterator[tuple[str, int]]:
    """Symbols of getters, and of `TOLD`, that a library asks through a table, and the offset of their slot."""
    told = tuple(f"{name}\0".encode() for name in TOLD)
    longest = max(map(len, (_CONST_MEMBER, *told)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = _sections(data)
        symbols, strings = sections[".dynsym"], sections[".dynstr"]
        for name in (".rela.plt", ".rela.dyn"):
            if name not in sections:
                continue
            start, size = sections[name]
            table = np.frombuffer(data[start : start + size], dtype=_RELOCATION)
            kinds = table["info"] & 0xFFFFFFFF
            table = table[(kinds == _JUMP_SLOT) | (kinds == _GLOB_DAT)]
            for offset, symbol in zip(table["offset"].tolist(), (table["info"] >> 32).tolist(), strict=True):
                (place,) = struct.unpack_from("<I", data, symbols[0] + 24 * symbol)
                begin = strings[0] + place
                if data[begin : begin + longest].startswith((_CONST_MEMBER, *told)):
                    yield data[begin : data.find(b"\0", begin)].decode(), offset


def _sections(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Name -> offset in the file and size, of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise NotPossibleError("torch's libraries are no 64-bit ELF files")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    strings = headers[names][4]
    found = {}
    for header in headers:
        begin = strings + header[0]
        found[data[begin : data.find(b"\0", begin)].decode()] = (header[4], header[5])
    return found
