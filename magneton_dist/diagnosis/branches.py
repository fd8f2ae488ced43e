"""Where the lines of two variants part, the condition there, and where what it reads comes from.

A parting counts only if it leads to other operators, or to whatever else is asked about: what two runs do differently
besides is passed over.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from magneton_dist.diagnosis import options
from magneton_dist.diagnosis.frames import Effects, Frame, all_effects, operators
from magneton_dist.diagnosis.lines import HIDDEN, UNKNOWN, Sources, head, reads
from magneton_dist.tracer.secrecy import WITHHELD, looks_secret

MOST_HOPS = 12
MOST_COMPARED = 4_000  # lines of a frame
_CARRIES = "/contextlib.py"  # its frames stand between a generator and the `with` that hands it its arguments


@dataclass(frozen=True)
class Reading:
    """A name that holds other values in two variants, and where it is read."""

    text: str
    values: tuple[str, str]
    place: str


@dataclass(frozen=True)
class Branch:
    """Where two variants part.

    Attributes:
        place: file:line function.
        condition: source of what decides there.
        chain: what it reads that differs, each where the one before comes from.
        origin: in words, where the last of the chain was set; empty when not known.
    """

    place: str
    condition: str
    chain: list[Reading] = field(default_factory=list)
    origin: str = ""


def branch(a: Frame, b: Frame, effects: Effects = operators) -> Branch | None:
    """Where `a` and `b`, the same place in two variants, part so that `effects` differ; None where they do not."""
    parting = _parting(a, b, effects)
    if parting is None:
        return None
    frames, (i, j) = parting
    sources = Sources()
    line = frames[0].lines[i].line
    statement = sources.statement(frames[0].file, line)
    parts = [] if statement is None else head(statement)
    condition = ", ".join(ast.unparse(part) for part in parts)
    if looks_secret(condition):
        condition = WITHHELD
    chain, origin = _Search(sources).from_line(frames, (i, j))
    return Branch(f"{frames[0].file}:{line} {frames[0].function}", condition, chain, origin)


def _blocks(a: Frame, b: Frame) -> Sequence[tuple[str, int, int, int, int]]:
    """How the lines of two frames of one function correspond, as `difflib` tells it."""
    mine, theirs = ([line.line for line in frame.lines[:MOST_COMPARED]] for frame in (a, b))
    return SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes()


def _parting(a: Frame, b: Frame, effects: Effects) -> tuple[tuple[Frame, Frame], tuple[int, int]] | None:
    """The innermost frames that part, and the line in each that decides."""
    for kind, i, i_end, j, j_end in _blocks(a, b):
        if kind != "equal":
            mine = [each for line in a.lines[i:i_end] for each in all_effects(a, line, effects)]
            theirs = [each for line in b.lines[j:j_end] for each in all_effects(b, line, effects)]
            if mine != theirs and i and j:
                return (a, b), (i - 1, j - 1)
            continue
        for one, other in zip(range(i, i_end), range(j, j_end), strict=True):
            x, y = a.lines[one], b.lines[other]
            if list(all_effects(a, x, effects)) == list(all_effects(b, y, effects)):
                continue
            for mine_called, theirs_called in zip(x.frames, y.frames, strict=False):
                if mine_called.code != theirs_called.code:
                    return (a, b), (one, other)
                found = _parting(mine_called, theirs_called, effects)
                if found is not None:
                    return found
            if len(x.frames) != len(y.frames):
                return (a, b), (one, other)
            # the line calls no Python that differs: it decides by what it calls or hands over, or torch does inside
            if effects(a, x) != effects(b, y) and any(x.values[n] != y.values.get(n) for n in x.values):
                return (a, b), (one, other)
    return None


class _Search:
    """Follows what differs from where it is read to where it was set."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._chain: list[Reading] = []

    def from_line(self, frames: tuple[Frame, Frame], at: tuple[int, int]) -> tuple[list[Reading], str]:
        """The chain from the names on this line, and where its end was set."""
        place: tuple[tuple[Frame, Frame], tuple[int, int]] | None = (frames, at)
        origin = ""
        expression: ast.AST | None = None
        while place is not None and len(self._chain) < MOST_HOPS:
            (a, b), (i, j) = place
            reading = self._differing(a, b, i, j, expression)
            if reading is None:
                break
            if reading not in self._chain:
                self._chain.append(reading)
            place, expression, origin = self._before((a, b), (i, j), reading.text)
        return self._chain, origin

    def _differing(self, a: Frame, b: Frame, i: int, j: int, expression: ast.AST | None) -> Reading | None:
        """The first name read there whose values differ; of `expression` alone, if given."""
        mine, theirs = a.lines[i].values, b.lines[j].values
        names = mine if expression is None else [ast.unparse(node) for node in reads(expression)]
        for text in names:
            pair = mine.get(text, UNKNOWN), theirs.get(text, UNKNOWN)
            if pair[0] != pair[1] and UNKNOWN not in pair:
                if any(value.startswith(HIDDEN) or looks_secret(value) for value in pair):
                    pair = WITHHELD, WITHHELD
                return Reading(text, pair, f"{a.file}:{a.lines[i].line} {a.function}")
        return None

    def _before(
        self, frames: tuple[Frame, Frame], at: tuple[int, int], text: str
    ) -> tuple[tuple[tuple[Frame, Frame], tuple[int, int]] | None, ast.AST | None, str]:
        """Where `text` got its value: a line and an expression to look at next, or words about its origin."""
        function = self._sources.statement_at(frames[0].file, frames[0].first)
        name = text.partition(".")[0].partition("[")[0]
        if text != name:
            return None, None, self._attribute(frames[0], text)
        sets = [self._last_assignment(frame, end, name) for frame, end in zip(frames, at, strict=True)]
        one, other = sets
        if one is not None and other is not None:
            lines = frames[0].lines[one].line, frames[1].lines[other].line
            if lines[0] == lines[1]:
                statement = self._sources.statement(frames[0].file, lines[0])
                return (frames, (one, other)), getattr(statement, "value", None), ""
        if one is not None or other is not None:  # set on other lines: what chose between them?
            return self._chooser(frames, one, other), None, ""
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return self._argument(frames, function, name)
        return None, None, ""

    def _last_assignment(self, frame: Frame, end: int, name: str) -> int | None:
        for place in range(end - 1, -1, -1):
            statement = self._sources.statement(frame.file, frame.lines[place].line)
            if statement is not None and name in _assigned(statement):
                return place
        return None

    def _chooser(
        self, frames: tuple[Frame, Frame], one: int | None, other: int | None
    ) -> tuple[tuple[Frame, Frame], tuple[int, int]] | None:
        for kind, i, i_end, j, j_end in _blocks(*frames):
            within = (one is not None and i <= one < i_end) or (other is not None and j <= other < j_end)
            if kind != "equal" and within and i and j:
                return frames, (i - 1, j - 1)
        return None

    def _argument(
        self, frames: tuple[Frame, Frame], function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> tuple[tuple[tuple[Frame, Frame], tuple[int, int]] | None, ast.AST | None, str]:
        """The caller that hands over argument `name` by an expression of its own."""
        plain = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in plain and name not in [argument.arg for argument in function.args.kwonlyargs]:
            return None, None, ""
        method = bool(plain) and plain[0] in ("self", "cls")
        position = plain.index(name) - method if name in plain else None
        origin = f"argument {name} of {self._qualified(frames[0])}"
        for mine, theirs in zip(frames[0].outer, frames[1].outer, strict=False):
            if mine.code != theirs.code:
                return None, None, origin
            if mine.file.endswith(_CARRIES):
                continue
            statement = self._sources.statement(mine.file, mine.lines[-1].line)
            for part in [] if statement is None else head(statement):
                handed = _handed_over(part, name, position)
                if handed is not None:
                    at = len(mine.lines) - 1, len(theirs.lines) - 1
                    differing = self._differing(mine, theirs, *at, handed)
                    if differing is not None:
                        return ((mine, theirs), at), handed, origin
                    place = f"{mine.file}:{mine.lines[-1].line} {mine.function}"
                    return None, None, f"{origin}, handed over at {place}"
        return None, None, origin

    def _attribute(self, frame: Frame, text: str) -> str:
        """Where an attribute of self was set, or which option of the command line another one may be, in words."""
        owner = self._sources.class_of(frame.file, frame.first)
        root, _, rest = text.partition(".")
        if root != "self" or owner is None:
            files = dict.fromkeys([frame.file, *(outer.file for outer in frame.outer)])
            return options.declared(rest, files, self._sources) if rest else ""
        name = rest.partition(".")[0].partition("[")[0]
        for method in owner.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(method):
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and f"self.{name}" in _targets(node):
                    known = {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)}
                    value = node.value
                    from_arguments = [] if value is None else _from_arguments(method, value, known, node.lineno)
                    words = f"set in {owner.name}.{method.name} (line {node.lineno}): {ast.unparse(node)}"
                    return words + (f", from {', '.join(from_arguments)}" if from_arguments else "")
        return ""

    def _qualified(self, frame: Frame) -> str:
        owner = self._sources.class_of(frame.file, frame.first)
        return frame.function if owner is None else f"{owner.name}.{frame.function}"


def _from_arguments(
    method: ast.FunctionDef | ast.AsyncFunctionDef, value: ast.AST, arguments: set[str], line: int, hops: int = 4
) -> list[str]:
    """What of a method's arguments an expression in it comes from: `config.x`, `x`."""
    found: list[str] = []
    for node in reads(value):
        text = ast.unparse(node)
        root = text.partition(".")[0].partition("[")[0]
        local = [
            each for each in ast.walk(method)
            if isinstance(each, ast.Assign) and each.lineno < line and root in _targets(each)
        ]  # fmt: skip
        if local and hops:
            found += _from_arguments(method, local[-1].value, arguments, local[-1].lineno, hops - 1)
        elif root in arguments and root != "self":
            found.append(f"{text} (argument of {method.name})")
    return list(dict.fromkeys(found))


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [ast.unparse(target) for target in targets]


def _assigned(statement: ast.stmt) -> set[str]:
    """Local names that this statement itself sets."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _handed_over(part: ast.AST, name: str, position: int | None) -> ast.expr | None:
    """What the last call in `part` with such an argument hands over as `name`; None where it is not written out."""
    for call in (node for node in ast.walk(part) if isinstance(node, ast.Call)):
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        plain = not any(isinstance(argument, ast.Starred) for argument in call.args)
        if plain and position is not None and position < len(call.args) and not call.keywords:
            return call.args[position]
    return None
