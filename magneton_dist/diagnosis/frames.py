"""Lines that a job took below one place in its source, and what of them counts when two variants are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneton_dist.diagnosis.lines import Values


@dataclass(frozen=True)
class Line:
    """One line that ran: what its names held, the operators it ran itself, the frames it called."""

    line: int
    values: Values
    operators: Sequence[str]
    frames: Sequence[Frame]


@dataclass(frozen=True)
class Frame:
    """One call of a function, and the frames around it from the inside, each with the one line it was at."""

    file: str
    function: str
    first: int
    lines: Sequence[Line]
    outer: tuple[Frame, ...]

    @property
    def code(self) -> tuple[str, str, int]:
        """Which function."""
        return self.file, self.function, self.first

    @classmethod
    def of(cls, recording: Mapping[str, Any]) -> Frame:
        """The frame that `magneton_dist.diagnosis.lines.Recorder` wrote."""
        codes = recording["code"]
        outer: tuple[Frame, ...] = ()
        for code, line, values in reversed(recording["outer"]):
            file, function, first = codes[code]
            outer = (cls(file, function, first, [Line(line, values, [], [])], outer), *outer)
        return _frame(recording["tree"], codes, outer)


def _frame(tree: Mapping[str, Any], codes: Sequence[Any], outer: tuple[Frame, ...]) -> Frame:
    file, function, first = codes[tree["code"]]
    lines: list[Line] = []
    for line, values, operators, frames in tree["lines"]:
        here = (Frame(file, function, first, [*lines, Line(line, values, [], [])], outer), *outer)
        lines.append(Line(line, values, operators, [_frame(called, codes, here) for called in frames]))
    return Frame(file, function, first, lines, outer)


Effects = Callable[[Frame, Line], Sequence[object]]  # what a line of a frame does itself that counts


def operators(frame: Frame, line: Line) -> Sequence[object]:
    """The operators that it runs itself."""
    return line.operators


def all_effects(frame: Frame, line: Line, effects: Effects) -> Iterator[object]:
    """Those of the line itself and of everything that it called."""
    yield from effects(frame, line)
    for called in line.frames:
        for inner in called.lines:
            yield from all_effects(called, inner, effects)
