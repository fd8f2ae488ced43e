"""What runs on the GPU, by CUPTI's activity records: the library that torch brings, its buffers read as they are.

No record becomes an object of its own: the library walks the buffers, and the few fields that matter are read at
their places. These are what `offsetof` says for the headers of CUDA 12.4, 12.6, 13.0 and 13.5 (kernel9 to kernel13,
memcpy5 to 7, memcpyPtoP4, memset4 and 5, api, external correlation), and the same in all of them. Names are copied
while their memory is there. What is left is a trace in Kineto's form, so that one reader does for both.

CUPTI has one subscriber in a process: where another profiler is that, nothing is enabled and the reason is given.
What a library lacks that kernels can do without is left out, with the reason in `missing`.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Callable

import torch

LIBRARIES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
BUFFER_BYTES = 1 << 20

_MEMCPY, _MEMSET, _DRIVER, _RUNTIME, _KERNEL, _PEERS = 1, 2, 4, 5, 10, 22  # CUpti_ActivityKind
_EXTERNAL = 39
_KINDS = (_KERNEL, _MEMCPY, _PEERS, _MEMSET, _RUNTIME, _DRIVER)
_CUSTOM2 = 5  # CUpti_ExternalCorrelationKind; torch's profiler has the two before it
_FORCED = 1  # flush buffers that are not full, too
_OK, _INVALID_KIND = 0, 21
_NEEDED = (
    "cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord", "cuptiGetTimestamp",
)  # fmt: skip
_PUSH, _POP = "cuptiActivityPushExternalCorrelationId", "cuptiActivityPopExternalCorrelationId"
_DROPPED = "cuptiActivityGetNumDroppedRecords"
_TIMES = struct.Struct("<QQ")  # start, end
_CALL = struct.Struct("<8xQQ8xI")  # of an API record, from its kind on: start, end, correlation
# device, stream, correlation and graph node, by kind: byte offsets within the record
_PLACES = {
    _KERNEL: (40, 48, 92, 144), _MEMCPY: (32, 40, 44, 64), _PEERS: (32, 40, 60, 72), _MEMSET: (32, 40, 44, 64),
}  # fmt: skip
_GRID, _NAME = struct.Struct("<3i"), 104  # of a kernel: its blocks, and where its name is
_GRID_AT = 52
_ID = struct.Struct("<4xiQI")  # of an external correlation, from its kind on: whose, id, correlation
_NAMES = {_MEMCPY: "Memcpy", _PEERS: "Memcpy PtoP", _MEMSET: "Memset"}
_SAID = {
    _MEMCPY: "copies", _PEERS: "copies between devices", _MEMSET: "fills", _RUNTIME: "launches by the runtime",
    _DRIVER: "launches by the driver", _EXTERNAL: "operators",
}  # fmt: skip
_CATEGORIES = {
    _KERNEL: "kernel", _MEMCPY: "gpu_memcpy", _PEERS: "gpu_memcpy", _MEMSET: "gpu_memset",
    _RUNTIME: "cuda_runtime", _DRIVER: "cuda_driver",
}  # fmt: skip

_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


_REGISTERED: list[Cupti] = []  # the library may call them for as long as the process lives, also once they are given up


class CuptiError(Exception):
    """CUPTI cannot be used; says why, with its result where it gave one."""

    def __init__(self, why: str, result: int | None = None) -> None:
        super().__init__(why)
        self.result = result


class Cupti:
    """CUPTI as a source of traces; one per process.

    Args:
        library: to load; by default the one that torch uses.

    Attributes:
        missing: what this library cannot tell of kernels, and why.
        operator: makes known which operator is called: within ``with operator(its start_ns):`` what is launched is
            that operator's; None where that cannot be, or was not asked for.

    Raises:
        CuptiError: there is none, it lacks what kernels need, or it does not take callbacks.
    """

    def __init__(self, library: str | None = None) -> None:
        self._cupti = _load((library,) if library else LIBRARIES)
        self.missing: dict[str, str] = {}
        self.operator: Callable[[int], AbstractContextManager[None]] | None = None
        self._enabled: list[int] = []
        self._sms: dict[int, int] = {}  # by device
        self._buffers: dict[int, Any] = {}  # by address
        self._full: list[tuple[int, int]] = []  # address and bytes that are valid
        self._requested, self._completed = _Requested(self._give), _Completed(self._take)
        _REGISTERED.append(self)
        self._check("cuptiActivityRegisterCallbacks", self._requested, self._completed)

    def start(self, operators: bool = False) -> None:
        """Have records made from here on; with `operators`, also which of them launched what.

        Raises:
            CuptiError: another profiler has them, or this user may not.
        """
        kinds = (*_KINDS, _EXTERNAL) if operators and self._has(_PUSH, _POP, what="operators") else _KINDS
        try:
            for kind in kinds:
                self._enable(kind)
        except CuptiError:
            self._disable()
            raise
        self.operator = self._announced if _EXTERNAL in self._enabled else None

    def _enable(self, kind: int) -> None:
        try:
            self._check("cuptiActivityEnable", ctypes.c_int(kind))
        except CuptiError as error:
            if error.result != _INVALID_KIND or kind == _KERNEL:
                raise
            self.missing[_SAID[kind]] = str(error)
        else:
            self._enabled.append(kind)

    @contextmanager
    def _announced(self, called_ns: int) -> Iterator[None]:
        self._cupti.cuptiActivityPushExternalCorrelationId(ctypes.c_int(_CUSTOM2), ctypes.c_uint64(called_ns))
        try:
            yield
        finally:
            last = ctypes.c_uint64(0)
            self._cupti.cuptiActivityPopExternalCorrelationId(ctypes.c_int(_CUSTOM2), ctypes.byref(last))

    def _has(self, *functions: str, what: str) -> bool:
        lacks = [name for name in functions if not hasattr(self._cupti, name)]
        if lacks:
            self.missing[what] = f"this library has no {', '.join(lacks)}"
        return not lacks

    def stop(self, path: str) -> int:
        """Wait for the device and write the trace; returns how far CUPTI's clock is ahead of the monotonic one, ns.

        Raises:
            CuptiError: the records cannot be had.
        """
        try:
            torch.cuda.synchronize()
            ahead_ns = self._ahead_ns()
            self._check("cuptiActivityFlushAll", ctypes.c_uint32(_FORCED))
        finally:
            self._disable()
        full, self._full = self._full, []
        base_ns = time.monotonic_ns() + ahead_ns  # as double, a time since the boot keeps no ns
        called_ns: dict[int, int] = {}  # by correlation
        events = [event for address, valid in full for event in self._events(address, valid, base_ns, called_ns)]
        for about in (event["args"] for event in events if event["args"]["correlation"] in called_ns):
            about["operator"] = called_ns[about["correlation"]]
        dropped = self._dropped()
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"baseTimeNanoseconds": base_ns, "dropped": dropped, "traceEvents": events}, file)
        return ahead_ns

    def drop(self) -> None:
        """Have no more records made, and forget those that were."""
        self._disable()
        self._cupti.cuptiActivityFlushAll(ctypes.c_uint32(_FORCED))
        full, self._full = self._full, []
        for address, _ in full:
            self._buffers.pop(address, None)

    def _disable(self) -> None:
        while self._enabled:
            self._cupti.cuptiActivityDisable(ctypes.c_int(self._enabled.pop()))

    # --- buffers: called by CUPTI, on its threads ---

    def _give(self, buffer: Any, size: Any, most: Any) -> None:
        made = (ctypes.c_uint64 * (BUFFER_BYTES // 8))()  # CUPTI wants it aligned to 8
        address = ctypes.addressof(made)
        self._buffers[address] = made
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _take(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        if valid:
            self._full.append((buffer, valid))
        else:
            self._buffers.pop(buffer, None)

    # --- records ---

    def _events(
        self, address: int, valid: int, base_ns: int, called_ns: dict[int, int]
    ) -> Iterator[dict[str, Any]]:
        """Events of one buffer, which is let go; what operators launched goes to `called_ns`."""
        view = memoryview(self._buffers.pop(address)).cast("B")
        names: dict[int, str] = {}
        record = ctypes.c_void_p(None)
        step, place = self._cupti.cuptiActivityGetNextRecord, ctypes.byref(record)
        start = ctypes.c_void_p(address)
        while step(start, ctypes.c_size_t(valid), place) == _OK:
            at = (record.value or 0) - address
            (kind,) = struct.unpack_from("<i", view, at)
            if kind in (_RUNTIME, _DRIVER):
                start_ns, end_ns, correlation = _CALL.unpack_from(view, at)
                yield _event(kind, "call", start_ns - base_ns, end_ns - start_ns, {"correlation": correlation})
            elif kind == _EXTERNAL:
                whose, announced, correlation = _ID.unpack_from(view, at)
                if whose == _CUSTOM2:
                    called_ns[correlation] = announced
            elif kind in _PLACES:
                start_ns, end_ns = _TIMES.unpack_from(view, at + 16)
                device, stream, correlation = (struct.unpack_from("<I", view, at + o)[0] for o in _PLACES[kind][:3])
                (node,) = struct.unpack_from("<Q", view, at + _PLACES[kind][3])
                name = _NAMES.get(kind)
                if name is None:
                    (pointer,) = struct.unpack_from("<Q", view, at + _NAME)
                    if pointer not in names:
                        names[pointer] = ctypes.string_at(pointer).decode("utf-8", "replace") if pointer else "?"
                    name = names[pointer]
                about = {"device": device, "stream": stream, "correlation": correlation}
                if kind == _KERNEL and (sms := self._sms_of(device)):
                    about["blocks per SM"] = math.prod(_GRID.unpack_from(view, at + _GRID_AT)) / sms
                if node:
                    about["graph node id"] = node
                yield _event(kind, name, start_ns - base_ns, end_ns - start_ns, about)

    def _sms_of(self, device: int) -> int:
        """How many there are; 0 where torch does not know the device."""
        if device not in self._sms:
            try:
                self._sms[device] = torch.cuda.get_device_properties(device).multi_processor_count
            except (RuntimeError, AssertionError) as error:
                self._sms[device] = 0
                self.missing["shares of SMs"] = str(error)
        return self._sms[device]

    def _dropped(self) -> int | None:
        if not self._has(_DROPPED, what="records that were dropped"):
            return None
        count = ctypes.c_size_t(0)
        self._cupti.cuptiActivityGetNumDroppedRecords(None, ctypes.c_uint32(0), ctypes.byref(count))
        return count.value

    def _ahead_ns(self) -> int:
        """CUPTI's clock less the monotonic one: the tightest of a few readings."""
        best = None
        stamp = ctypes.c_uint64(0)
        for _ in range(5):
            before = time.monotonic_ns()
            self._check("cuptiGetTimestamp", ctypes.byref(stamp))
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = after - before, stamp.value - (before + after) // 2
        assert best is not None
        return best[1]

    def _check(self, function: str, *arguments: Any) -> None:
        result = getattr(self._cupti, function)(*arguments)
        if result != _OK:
            text = ctypes.c_char_p()
            if hasattr(self._cupti, "cuptiGetResultString"):
                self._cupti.cuptiGetResultString(ctypes.c_int(result), ctypes.byref(text))
            said = (text.value or b"unknown").decode("ascii", "replace")
            raise CuptiError(f"{function}: {said} ({result})", result)


def version() -> str:
    """Version of the library that would be used; raises `CuptiError` when there is none that can be."""
    number = ctypes.c_uint32(0)
    library = _load(LIBRARIES)
    if not hasattr(library, "cuptiGetVersion") or library.cuptiGetVersion(ctypes.byref(number)) != _OK:
        raise CuptiError("it does not tell its version")
    return str(number.value)


def _event(kind: int, name: str, since_ns: int, lasts_ns: int, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": _CATEGORIES[kind], "name": name, "ts": since_ns / 1e3, "dur": lasts_ns / 1e3,
        "pid": about.get("device", 0), "tid": about.get("stream", 0), "args": about,
    }  # fmt: skip


def _load(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        lacks = [function for function in _NEEDED if not hasattr(library, function)]
        if lacks:
            raise CuptiError(f"{name} has no {', '.join(lacks)}: it is older or newer than CUDA 12 and 13")
        return library
    raise CuptiError(f"no library {' or '.join(names)}")
