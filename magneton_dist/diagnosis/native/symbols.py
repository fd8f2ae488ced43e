"""Functions of the libraries in this process, by address and by name: 64-bit ELF. Standard library and numpy."""

from __future__ import annotations

import ctypes
import mmap
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneton_dist.diagnosis.read_set import NotPossibleError

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION, _INDIRECT_FUNCTION = 2, 10
_HEAD = 12  # bytes of a name that are compared at once
_FAMILY = ("libtorch", "libc10")


@dataclass(frozen=True)
class Function:
    """A function of a library.

    Attributes:
        library: name of its file.
        start, size: where it lies in the library, bytes.
        symbol: its name as the linker has it.
    """

    library: str
    start: int
    size: int
    symbol: str


@dataclass(frozen=True)
class _Section:
    address: int
    offset: int
    size: int
    link: int


class Library:
    """One library that is loaded.

    Args:
        path: its file.
        base: address of its first byte in this process.

    Raises:
        NotPossibleError: it is no 64-bit ELF file, or has no names.
    """

    def __init__(self, path: Path, base: int) -> None:
        self.name, self.base = path.name, base
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:5] != b"\x7fELF\x02":
            raise NotPossibleError(f"{path.name} is no 64-bit ELF file")
        self._sections = dict(self._headers())
        table = self._sections.get(".symtab") or self._sections.get(".dynsym")
        if table is None:
            raise NotPossibleError(f"{path.name} has no names of functions")
        symbols = np.frombuffer(self._data, _SYMBOL, table.size // _SYMBOL.itemsize, table.offset)
        kinds = symbols["info"] & 15
        symbols = symbols[((kinds == _FUNCTION) | (kinds == _INDIRECT_FUNCTION)) & (symbols["section"] != 0)]
        self._symbols = symbols[np.argsort(symbols["value"], kind="stable")]
        self._starts = np.ascontiguousarray(self._symbols["value"])
        self._strings = list(self._sections.values())[table.link]

    def function_at(self, offset: int) -> Function | None:
        """The function that has the byte at `offset`; None between functions."""
        place = int(np.searchsorted(self._starts, np.uint64(offset), "right")) - 1
        if place < 0 or offset >= int(self._starts[place]) + max(1, int(self._symbols["size"][place])):
            return None
        return self._function(place)

    def named(self, beginnings: Iterable[str]) -> list[Function]:
        """Functions whose names begin with one of these; a name that ends with NUL is the whole of it."""
        text = np.frombuffer(self._data, np.uint8)
        first = self._strings.offset + self._symbols["name"].astype(np.int64)
        first = np.minimum(first, len(text) - _HEAD)  # the last few names of a file are no functions of torch
        heads = text[first[:, None] + np.arange(_HEAD)]
        found: dict[int, Function] = {}
        for beginning in beginnings:
            wanted = np.frombuffer(beginning.encode()[:_HEAD], np.uint8)
            for place in np.flatnonzero((heads[:, : len(wanted)] == wanted).all(axis=1)).tolist():
                function = self._function(place)
                if f"{function.symbol}\0".startswith(beginning):
                    found[function.start] = function
        return list(found.values())

    def ranges(self, function: Function) -> list[tuple[int, int]]:
        """Bytes of a function, from and until, also of the part that the compiler put aside."""
        ranges = [(function.start, function.start + function.size)]
        end = self._strings.offset + self._strings.size
        begin = self._data.find(f"\0{function.symbol}.cold\0".encode(), self._strings.offset, end) + 1
        for place in np.flatnonzero(self._symbols["name"] == begin - self._strings.offset).tolist() if begin else ():
            aside = self._function(place)
            ranges.append((aside.start, aside.start + aside.size))
        return ranges

    def code(self, offset: int, size: int) -> bytes:
        """Machine code as the file has it."""
        for section in self._sections.values():
            if section.address and section.address <= offset < section.address + section.size:
                begin = section.offset + offset - section.address
                return self._data[begin : begin + size]
        return b""

    @cached_property
    def stubs(self) -> list[tuple[int, int]]:
        """Where calls of other libraries pass through, from and until."""
        tables = [self._sections[name] for name in (".plt", ".plt.sec", ".plt.got") if name in self._sections]
        return [(table.address, table.address + table.size) for table in tables]

    def _function(self, place: int) -> Function:
        symbol = self._symbols[place]
        begin = self._strings.offset + int(symbol["name"])
        name = self._data[begin : self._data.find(b"\0", begin)].decode()
        return Function(self.name, int(symbol["value"]), int(symbol["size"]), name)

    def _headers(self) -> Iterator[tuple[str, _Section]]:
        (table,) = struct.unpack_from("<Q", self._data, 40)
        size, count, names = struct.unpack_from("<HHH", self._data, 58)
        headers: list[tuple[Any, ...]] = [
            struct.unpack_from("<IIQQQQI", self._data, table + size * place) for place in range(count)
        ]
        strings = headers[names][4]
        for place, header in enumerate(headers):
            begin = strings + header[0]
            name = self._data[begin : self._data.find(b"\0", begin)].decode() or f"#{place}"
            yield name, _Section(header[3], header[4], header[5], header[6])


class Libraries:
    """Torch's libraries in this process."""

    def __init__(self) -> None:
        spans: dict[Path, tuple[int, int]] = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            # shared: a file that is read, such as these libraries by this module; the loader's are private
            if len(fields) < 6 or "p" not in fields[1] or not Path(fields[5]).name.startswith(_FAMILY):
                continue
            begin, end = (int(address, 16) for address in fields[0].split("-"))
            first, last = spans.get(Path(fields[5]), (begin - int(fields[2], 16), end))
            spans[Path(fields[5])] = first, max(last, end)
        self._spans = sorted((begin, end, path) for path, (begin, end) in spans.items())
        self._begins = [begin for begin, _, _ in self._spans]

    def at(self, address: int) -> Library | None:
        """The library that has this address; None for what is not torch's."""
        place = bisect_right(self._begins, address) - 1
        if place < 0 or address >= self._spans[place][1]:
            return None
        return _library(self._spans[place][2], self._spans[place][0])

    def named(self, name: str) -> Library:
        """The library of this name.

        Raises:
            NotPossibleError: it is not loaded.
        """
        for begin, _, path in self._spans:
            if path.name == name:
                return _library(path, begin)
        raise NotPossibleError(f"{name} is not loaded")

    def function_at(self, address: int) -> Function | None:
        """The function that has this address; None for what is not torch's, or has no name."""
        library = self.at(address)
        return None if library is None else library.function_at(address - library.base)


@cache
def _library(path: Path, base: int) -> Library:
    return Library(path, base)


@cache
def demangled(symbol: str) -> str:
    """A C++ name as a person writes it; `symbol` itself where it is none."""
    if not symbol.startswith("_Z"):
        return symbol
    standard = ctypes.CDLL("libstdc++.so.6")  # torch brings it
    standard.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = standard.__cxa_demangle(symbol.partition(".")[0].encode(), None, None, ctypes.byref(status))
    if not found:
        return symbol
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text
