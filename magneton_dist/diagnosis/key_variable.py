"""Where in torch's own code an operator parts between two worlds, and the variable that decides it.

The deviation point is the last function that both worlds have in common on the way to a kernel, or to another
operator, that only one of them comes to. Its instructions are followed in both; the branch at which they part is traced
back to the value that decides it, down into the functions that return it, until one of torch's settings is asked: the
paper's Algorithm 2 (arXiv 2512.08365), without a debugger. Machine code is read and followed in fresh processes, each
with a limit of time; one that crashes is an answer, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from magneton_dist.diagnosis.followed import Function, Level
from magneton_dist.diagnosis.laboratory import OutOfTimeError
from magneton_dist.diagnosis.native.slices import BRANCH, RETURN
from magneton_dist.diagnosis.read_set import asked_as
from magneton_dist.diagnosis.trial import Trial

KEY_VARIABLE = "key variable"
LIMIT_S = 60.0  # of all questions together
QUESTION_LIMIT_S = 20.0
MOST_LEVELS = 12  # functions that are gone down into
MOST_CALLS = 6  # of one function, that are looked into for the one that parts
_CONTEXT = "at::Context::"
_SHOWN = 100  # characters of a C++ name
_ALL_BITS = (1 << 64) - 1


class _StoppedError(Exception):
    """It cannot be followed any further, and why."""


class _CannotRunError(Exception):
    """A process did not say what was asked of it, and why."""


@dataclass
class KeyVariable:
    """What decides which way an operator goes.

    Attributes:
        deviation: the function where the worlds part; empty when that was not found.
        chain: functions that the value came through, the deviation point first.
        kind: setting, memory (a field or a variable that no setting was seen to give), or unclear.
        read: the instruction that reads the memory.
        getter: of the setting, as read-sets name it; answers: in world A and in B.
        error: why it was not found; ran: not because a process failed or time was over.
    """

    deviation: str = ""
    chain: list[str] = field(default_factory=list)
    kind: str = "unclear"
    read: str = ""
    getter: str = ""
    answers: tuple[int, int] = (0, 0)
    error: str = ""
    ran: bool = True

    def lines(self, operator: str, names: tuple[str, str]) -> list[str]:
        """In words, for variants of these names."""
        found = [f"deviation point: {operator} parts in {_short(self.deviation)}"] if self.deviation else []
        if self.kind == "setting":
            told = ", ".join(f"{value} as in {name}" for value, name in zip(self.answers, names, strict=True))
            found.append(f"{KEY_VARIABLE}: {' <- '.join(map(_short, self.chain))} <- {_CONTEXT}{self.getter}: {told}")
        elif self.kind == "memory":
            chain = " <- ".join(map(_short, self.chain))
            found.append(f"{KEY_VARIABLE}: {chain} <- memory that {self.read} reads, no setting of torch's")
        if self.error:
            found.append(f"{KEY_VARIABLE}: {'not found' if self.ran else 'could not run'}: {self.error}")
        return found


def key_variable(trial: Trial) -> KeyVariable:
    """What decides which way the call of `trial` goes, in world A or with all factors flipped."""
    search = _Search(trial)
    try:
        search.run()
    except (_StoppedError, _CannotRunError, OutOfTimeError) as error:
        search.found.kind, search.found.error = "unclear", str(error)
        search.found.ran = isinstance(error, _StoppedError)
    return search.found


class _Search:
    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._worlds = frozenset[int](), frozenset(range(len(trial.factors)))
        self._end_s = time.monotonic() + LIMIT_S
        self._root: Function = ("", 0, "")
        self._above: list[Function] = []  # functions on the stack above the root, outermost first
        self.found = KeyVariable()

    def run(self) -> None:
        self._root, *ways = self._deviation()
        self.found.deviation = self._root[2]
        path, level = self._first_that_parts()
        while (inner := self._inner(path, level, [way[0] for way in ways if way])) is not None:
            path, level = inner
            ways = [way[1:] for way in ways if way and way[0][:2] == level.function[:2]]
        self.found.deviation = level.function[2]
        self.found.chain = [self.found.deviation]
        if not level.parts:
            raise _StoppedError("both worlds do the same instructions there")
        self._back(path, level)

    def _back(self, path: list[int], level: Level) -> None:
        """From the branch to the value that decides it, through the functions that return it or hand it over."""
        levels, mask = [level], _ALL_BITS
        want: str | int = BRANCH
        at = level.common - 1
        for _ in range(MOST_LEVELS):
            level = levels[-1]
            source = self._ask(frozenset(), "slice", {
                "library": level.function[0], "steps": level.sides[0]["steps"][: at + 1], "at": at, "want": want,
                "calls": level.returned(), "mask": mask,
            })  # fmt: skip
            if source["place"] is not None:
                number, mask = level.number_at(source["place"]), source["mask"]
                if self._is_setting(level, number):
                    return
                path = [*path, number]
                level = self._follow(path, level, number)
                levels.append(level)
                self.found.chain.append(level.function[2])
                want, at = (BRANCH, level.common - 1) if level.parts else (RETURN, len(level.sides[0]["steps"]))
                continue
            handed = {int(number): bits for number, bits in source["arguments"].items()}
            if handed and len(levels) == 1 and self._above:
                path, levels = self._caller(path, level)
                if len(levels) == 1:  # the worlds part before the call
                    self.found.chain.append(levels[0].function[2])
                    want, at = BRANCH, levels[0].common - 1
                    continue
            argument = next((n for n, bits in handed.items() if levels[-1].differs(n, bits)), None)
            if argument is not None and len(levels) > 1:  # the function above it has it from somewhere
                want, mask, at = argument, handed[argument], levels.pop().place
                path = path[:-1]
                self.found.chain.append(levels[-1].function[2])
            elif source["memory"]:
                self.found.kind, self.found.read = "memory", source["lines"][-1]
                return
            else:
                raise _StoppedError(f"what decides {_short(level.function[2])} cannot be followed further")
        raise _StoppedError(f"not within {MOST_LEVELS} functions")

    def _caller(self, path: list[int], level: Level) -> tuple[list[int], list[Level]]:
        """The function that called the root and the root as it called it; that function alone if the worlds part there.

        Raises:
            _StoppedError: the way from it to the root is not a plain call.
        """
        inner, self._root = self._root, self._above.pop()
        callers = self._entered()
        calls = [(time_, number) for time_, caller in enumerate(callers) for number in caller.calls_to([inner])]
        if path[0] < len(calls):
            time_, number = calls[path[0]]
            one, other = (side["calls"][number] for side in callers[time_].sides)
            called = replace(level, place=one[0], arguments=(one[4], other[4]))
            return [time_, number, *path[1:]], [callers[time_], called]
        parting = next((time_ for time_, caller in enumerate(callers) if caller.parts), None)
        if parting is None:
            raise _StoppedError(f"what {_short(inner[2])} is handed cannot be followed further")
        return [parting], [callers[parting]]

    def _entered(self) -> list[Level]:
        """The root, each time that it is entered."""
        sides = [self._ask(flipped, "steps", self._steps([])) for flipped in self._worlds]
        return [Level(self._root, pair) for pair in zip(*(side["entered"] for side in sides), strict=False)]

    def _is_setting(self, level: Level, number: int) -> bool:
        one, other = (side["calls"][number] for side in level.sides)
        if not one[3].startswith(_CONTEXT):
            return False
        name = one[3].removeprefix(_CONTEXT).partition("(")[0]
        self.found.kind, self.found.getter = "setting", asked_as(name, one[4][1], one[4][2])
        self.found.answers = one[5] & 0xFF, other[5] & 0xFF
        return True

    def _deviation(self) -> tuple[Function, list[Function], list[Function]]:
        """The last function in common on the way to the first launch that differs; the ways on from there."""
        worlds = []
        for flipped in self._worlds:
            said = self._ask(flipped, "launches", True)
            functions: list[Function] = [(library, start, name) for library, start, name in said["functions"]]
            worlds.append([[functions[number] for number in stack] for stack in said["stacks"]])
        a, b = worlds
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        same = alike == max(len(a), len(b))
        if (same or not a or not b) and self._trial.gpu:
            raise _CannotRunError("launches on a GPU are not followed, and no operator before them differs")
        if same:
            raise _StoppedError("both worlds come to the same kernels through the same functions of torch's")
        if not a or not b:
            raise _StoppedError("one of the worlds comes to no kernel")
        one, other = (world[min(alike, len(world) - 1)] for world in worlds)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        if shared == 0:
            raise _StoppedError("the worlds part above torch's own code, in Python")
        self._above = one[: shared - 1]
        return one[shared - 1], one[shared:], other[shared:]

    def _first_that_parts(self) -> tuple[list[int], Level]:
        """The first time that the worlds part in the root; the first time at all where they do not."""
        levels = self._entered()
        if not levels:
            raise _StoppedError(f"{_short(self._root[2])} was not entered")
        number = next((n for n, level in enumerate(levels) if level.parts), 0)
        return [number], levels[number]

    def _inner(self, path: list[int], level: Level, to: Sequence[Function]) -> tuple[list[int], Level] | None:
        """A function that both worlds call here on the way to what differs, if they part in it already."""
        for number in level.calls_to(to)[:MOST_CALLS]:
            inner = self._follow([*path, number], level, number)
            if inner.parts:
                return [*path, number], inner
        return None

    def _follow(self, path: list[int], above: Level, number: int) -> Level:
        calls = [side["calls"][number] for side in above.sides]
        said = [self._ask(flipped, "steps", self._steps(path)) for flipped in self._worlds]
        if not all(side["entered"] and side["entered"][0]["steps"] for side in said):
            raise _StoppedError(f"{_short(calls[0][3] or 'a function without a name')} could not be followed")
        library, start, name = said[0]["function"]
        sides = said[0]["entered"][0], said[1]["entered"][0]
        return Level((library, start, name), sides, calls[0][0], (calls[0][4], calls[1][4]))

    def _steps(self, path: list[int]) -> dict[str, Any]:
        return {"library": self._root[0], "start": self._root[1], "path": path}

    def _ask(self, flipped: frozenset[int], what: str, question: object) -> dict[str, Any]:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise _CannotRunError(f"it took more than {LIMIT_S:g} s")
        found = self._trial.native(flipped, what, question, min(left_s, QUESTION_LIMIT_S))
        if "error" in found:
            raise _CannotRunError(found["error"])
        answer: dict[str, Any] = found[what]
        return answer


def _short(name: str) -> str:
    """A C++ function without its arguments and, where it is a template, without what it returns."""
    depth = begin = 0
    for place, character in enumerate(name):
        if character == "(" and depth == 0 and not name.startswith("(anonymous", place):
            return name[begin:place][:_SHOWN]
        if character == " " and depth == 0:
            begin = place + 1
        depth += (character in "<(") - (character in ">)")
    return name[begin:][:_SHOWN]
