"""Which instructions of a function are done, one by one, and what the functions that it calls return.

Runs in fresh processes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from magneton_dist.diagnosis.native.symbols import Function, Libraries, Library, demangled
from magneton_dist.diagnosis.native.traps import ARGUMENTS, RAX, RIP, RSP, Registers, Traps
from magneton_dist.diagnosis.read_set import NotPossibleError

MOST_STEPS = 20_000  # of one time that the function is entered
MOST_ENTERED = 40
STACK_ARGUMENTS = 10  # words that are noted
_WORD_BYTES = 8


@dataclass
class Entered:
    """One time that the function was entered.

    Attributes:
        steps: offsets of its instructions in its library, in order.
        calls: [place of the call in `steps`; library, offset and name of what was called; its arguments in registers
            and on the stack; what it returned, None where that was not seen; was it a jump that does not come back].
        returned: what it returned itself; None where that was not seen.
        whole: no step is missing.
    """

    steps: list[int] = field(default_factory=list)
    calls: list[list[Any]] = field(default_factory=list)
    returned: int | None = None
    whole: bool = False


def steps(call: Callable[[], Any], library: str, start: int, path: Sequence[int]) -> dict[str, Any]:
    """Follow a function, or one that it calls.

    Args:
        call: runs the operator once.
        library, start: where the function lies.
        path: empty to follow the function every time that it is entered; else the number of that time, then the
            number of a call in it, then the number of a call in that one, ...: the last of these is followed.

    Returns:
        `function`: [library, offset, name] of what was followed, None if it was not reached; `entered`: fields of
        `Entered`, of each time.

    Raises:
        NotPossibleError: code cannot be followed here.
    """
    follower = _Follower(library, start, path)
    follower.traps.run(call)
    found = follower.function
    return {
        "function": None if found is None else [found.library, found.start, demangled(found.symbol)],
        "entered": [vars(entered) for entered in follower.entered],
    }


@dataclass
class _Level:
    """A function that is being followed on the way to the one that is wanted."""

    function: Function
    library: Library
    ranges: list[tuple[int, int]]
    stack: int  # address of the word that it returns through
    calls: int = 0

    def has(self, address: int) -> bool:
        offset = address - self.library.base
        return any(begin <= offset < end for begin, end in self.ranges)


class _Follower:
    def __init__(self, library: str, start: int, path: Sequence[int]) -> None:
        self._libraries = Libraries()
        self._library = self._libraries.named(library)
        function = self._library.function_at(start)
        if function is None:
            raise NotPossibleError(f"{library} has no function at {start:#x}")
        self._root, self._entry = function, self._library.base + start
        self._time = path[0] if path else None
        self._path = path[1:]
        self.entered: list[Entered] = []
        self.function: Function | None = None
        self._times = 0
        self._levels: list[_Level] = []
        self._now: Entered | None = None  # where the function that is wanted notes its steps
        self._awaited: tuple[int, int] | None = None  # address and stack that a call comes back to
        self._last = 0
        self.traps = Traps(self._stopped, self._stepped)
        self.traps.arm([self._entry])

    def _stopped(self, registers: Registers) -> None:
        address = registers[RIP]
        if self._awaited is not None:
            if (address, registers[RSP]) == self._awaited:
                self._awaited = None
                if address != self._entry:
                    self.traps.disarm(address)
                if self._now is not None:
                    self._now.calls[-1][5] = registers[RAX]
                self.traps.stepping = True
                self._stepped(registers)
        elif address == self._entry and not self._levels:
            self._times += 1
            if self._times <= MOST_ENTERED and self._time in (None, self._times - 1):
                self._enter(self._root, registers[RSP])
                self._stepped(registers)

    def _enter(self, function: Function, stack: int) -> None:
        library = self._libraries.named(function.library)
        self._levels.append(_Level(function, library, library.ranges(function), stack))
        self._last = 0
        if len(self._levels) == len(self._path) + 1:
            self._now = Entered()
            self.entered.append(self._now)
            self.function = function
        self.traps.stepping = True

    def _leave(self) -> None:
        self._levels.clear()
        self._now = None
        self.traps.stepping = False

    def _stepped(self, registers: Registers) -> None:
        level, address, stack = self._levels[-1], registers[RIP], registers[RSP]
        inside = level.has(address)
        if inside and (address != level.library.base + level.function.start or self._last == 0):
            if self._now is not None and address != self._last:  # a repeated instruction traps each time
                self._now.steps.append(address - level.library.base)
            self._last = address
            if self._now is not None and len(self._now.steps) > MOST_STEPS:
                self._leave()
        elif not inside and stack > level.stack:
            if self._now is not None:
                self._now.returned, self._now.whole = registers[RAX], True
            self._leave()
        elif not self._in_stub(address):
            self._called(level, registers)

    def _in_stub(self, address: int) -> bool:
        library = self._libraries.at(address)
        return library is not None and any(
            begin <= address - library.base < end for begin, end in library.stubs
        )

    def _called(self, level: _Level, registers: Registers) -> None:
        """Another function begins: follow it if it is on the path, else go on behind it."""
        back, stack = registers.top(), registers[RSP]
        jumped = not level.has(back)
        function = self._libraries.function_at(registers[RIP])
        number, level.calls = level.calls, level.calls + 1
        depth = len(self._levels) - 1
        if self._now is None and self._path[depth] == number:
            if function is None:
                self._leave()
            else:
                self._enter(function, stack)
                self._stepped(registers)
            return
        if self._now is not None:
            place = len(self._now.steps) - 1
            name = ("", 0, "") if function is None else (function.library, function.start, demangled(function.symbol))
            arguments = [registers[register] for register in ARGUMENTS] + registers.words(STACK_ARGUMENTS)
            self._now.calls.append([place, *name, arguments, None, jumped])
        if jumped and self._now is None:
            self._leave()
            return
        self.traps.stepping = False
        self._awaited = back, stack + _WORD_BYTES
        self.traps.arm([back])
