"""Stops a thread at instructions of this process, and lets it go on by single instructions.

Where it is to stop, an instruction is replaced by one that traps; the signal's handler is Python's own, called through
ctypes. No other process, no privilege and no compiler is needed, but code must be writable. x86-64 and Linux only.
What goes wrong here ends the process: it runs only in one that was made for it, with one thread.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import signal
from collections.abc import Callable, Iterable
from typing import Any

from magneton_dist.diagnosis.read_set import NotPossibleError

# Places of registers in what the kernel hands to the handler, <sys/ucontext.h>.
RDI, RSI, RDX, RAX, RCX, RSP, RIP, FLAGS = 8, 9, 12, 13, 14, 15, 16, 17
ARGUMENTS = (RDI, RSI, RDX, RCX, 0, 1)  # the last two are r8 and r9
_REGISTERS, _REGISTERS_AT, _CODE_AT = 23, 40, 8
_TRACED = 2  # TRAP_TRACE: one instruction was done
_TRAP_FLAG = 0x100
_TRAP = 0xCC
_PAGE, _ALL = 4096, 7
_SIGNAL_INFORMATION, _NOT_DEFERRED = 4, 0x40000000
_WORD = (1 << 64) - 1
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", _Handler), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p),
    )  # fmt: skip


class Registers:
    """Registers of the thread that was stopped; what is written to them is what it goes on with."""

    def __init__(self, context: int) -> None:
        self._words = (ctypes.c_longlong * _REGISTERS).from_address(context + _REGISTERS_AT)

    def __getitem__(self, register: int) -> int:
        return int(self._words[register]) & _WORD

    def __setitem__(self, register: int, value: int) -> None:
        self._words[register] = value

    def words(self, count: int) -> list[int]:
        """The words on the stack behind the one on top."""
        return list((ctypes.c_ulonglong * count).from_address(self[RSP] + ctypes.sizeof(ctypes.c_ulonglong)))

    def top(self) -> int:
        """The word on top of the stack: where a function that was just entered returns to."""
        return int(ctypes.c_ulonglong.from_address(self[RSP]).value)


class Traps:
    """Places to stop at.

    Args:
        on_stop: is told of an armed place that was reached.
        on_step: is told of an instruction that is next, while `stepping`.

    Attributes:
        stepping: the thread goes on by single instructions.

    Raises:
        NotPossibleError: another processor or system.
    """

    def __init__(
        self, on_stop: Callable[[Registers], None], on_step: Callable[[Registers], None] = lambda _: None
    ) -> None:
        if platform.machine() != "x86_64" or platform.system() != "Linux":
            raise NotPossibleError("code is followed on x86-64 Linux only")
        self.stepping = False
        self._on_stop, self._on_step = on_stop, on_step
        self._libc = ctypes.PyDLL(None, use_errno=True)  # the handler must not let go of the interpreter
        self._original: dict[int, int] = {}
        self._writable: set[int] = set()
        self._left: int | None = None  # place that was left just now, to be armed again
        self._handler = _Handler(self._handle)
        action = _Action(self._handler, flags=_SIGNAL_INFORMATION | _NOT_DEFERRED)
        if self._libc.sigaction(signal.SIGTRAP, ctypes.byref(action), None):
            raise NotPossibleError("no handler for traps can be set")

    def arm(self, places: Iterable[int]) -> None:
        """Stop at these addresses.

        Raises:
            NotPossibleError: their code cannot be written.
        """
        for place in places:
            if place not in self._original:
                self._original[place] = ctypes.c_ubyte.from_address(place).value
            self._put(place, _TRAP)

    def disarm(self, place: int) -> None:
        """Do not stop there any more."""
        self._put(place, self._original.pop(place))
        self._left = None if self._left == place else self._left

    def run(self, call: Callable[[], Any]) -> None:
        """Make the call, and stop at what is armed; nothing is armed afterwards."""
        gc.disable()  # a collection in the handler could run torch's code
        try:
            call()
        finally:
            for place in list(self._original):
                self.disarm(place)

    def _put(self, place: int, byte: int) -> None:
        page = place & -_PAGE
        if page not in self._writable:
            # once and for good: the code runs on while it is written
            if self._libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _ALL):
                raise NotPossibleError(f"code cannot be made writable here: {os.strerror(ctypes.get_errno())}")
            self._writable.add(page)
        ctypes.c_ubyte.from_address(place).value = byte

    def _handle(self, _signal: int, information: int, context: int) -> None:
        registers = Registers(context)
        if ctypes.c_int.from_address(information + _CODE_AT).value == _TRACED:
            if self._left is not None:
                self._put(self._left, _TRAP)
                self._left = None
            if self.stepping:
                self._on_step(registers)
        else:
            place = registers[RIP] - 1
            if place not in self._original:
                return
            registers[RIP] = self._left = place
            self._put(place, self._original[place])
            self._on_stop(registers)
        flags = registers[FLAGS] & ~_TRAP_FLAG
        registers[FLAGS] = flags | (_TRAP_FLAG if self.stepping or self._left is not None else 0)
