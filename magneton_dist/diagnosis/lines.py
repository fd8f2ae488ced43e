"""Which lines a job takes below one place in its source, and what the names on them hold; runs inside the job.

Loaded by its path in the job's own Python: standard library and torch, no other module of this package.
`sys.settrace` records on every version of Python; until the place is reached it costs each call, so from 3.12 on
`sys.monitoring` waits in its stead.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import ctypes
import dis
import enum
import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Callable

WANTED = "MAGNETON_DIST_LINES"  # JSON: fields of `Recorder`
UNKNOWN = "?"
HIDDEN = "hidden "  # stands before a digest
MOST_LINES = 60_000  # that one recording keeps
MOST_EARLIER = 1_000  # of the same frame, before the statement
MOST_OUTER = 24  # frames around it
_PR_SET_PDEATHSIG = 1
_OPAQUE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# between an operator and the line that calls it
_WRAPPERS = re.compile(r"<frozen importlib|.*/torch/(_library/|utils/_python_dispatch\.py)|" + re.escape(__file__))
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LONG = re.compile(r"[\w+=/-]{24,}|://[^/\s]*@")
Values = dict[str, str]


def arm(environ: Mapping[str, str]) -> None:
    """Watch for the place that `WANTED` names, if this process is the rank that it names."""
    wanted = json.loads(environ.get(WANTED, "null"))
    if wanted is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if environ.get("RANK", "") == str(wanted.pop("rank")):
        recorder = Recorder(**wanted)
        atexit.register(recorder.close)
        watch(recorder)


def watch(recorder: Recorder) -> None:
    """Have `recorder` see the main thread's frames, from the first one that it wants on."""
    free = _free_tool()
    if free is None or sys.version_info < (3, 12):
        sys.settrace(recorder.entered)
        return
    monitoring, tool = sys.monitoring, free
    start, main = monitoring.events.PY_START, threading.main_thread().ident

    def started(code: CodeType, offset: int) -> Any:
        if not recorder.wants(code):
            return monitoring.DISABLE
        if threading.get_ident() == main:
            monitoring.set_events(tool, monitoring.events.NO_EVENTS)
            monitoring.register_callback(tool, start, None)
            monitoring.free_tool_id(tool)
            frame = sys._getframe(1)
            sys.settrace(recorder.entered)
            frame.f_trace = recorder.entered(frame, "call", None)
        return None

    monitoring.use_tool_id(tool, "magneton-dist")
    monitoring.register_callback(tool, start, started)
    monitoring.set_events(tool, start)


def _free_tool() -> int | None:
    """An id of `sys.monitoring` that nobody has and that is meant for no kind of tool; None where there is none."""
    if sys.version_info < (3, 12):
        return None
    return next((tool for tool in (3, 4) if sys.monitoring.get_tool(tool) is None), None)


class Recorder:
    """Records the first run of a statement or of a function, and writes it.

    What it writes is JSON: `code`, a list of [file, function, first line]; `outer`, frames around the recorded one
    from the inside, [code, line, values]; `tree`, the frame {code, lines: [line, values, operators, frames]}, where
    frames are those called from the line; `truncated`. Of lines before a statement there are no operators and frames.

    Args:
        file, function: of the frame.
        line: of the statement to record, with everything that it calls; None: the function, without what it calls.
        until: line of the function after which nothing more of it is wanted.
        path: of the file to write.
    """

    def __init__(self, file: str, function: str, line: int | None, until: int | None, path: str) -> None:
        self._file, self._function, self._path = file, function, path
        self._start, self._until = line, until
        self._folder = os.getcwd()
        self._sources = Sources()
        self._codes: dict[CodeType, int] = {}
        self._root: FrameType | None = None  # while recording
        self._frames: list[dict[str, Any]] = []  # being recorded, outermost first
        self._inner: list[FrameType] = []  # the same as Python has them
        self._earlier: dict[FrameType, deque[Any]] = {}  # lines of frames that have not come to the statement
        self._operators: Any = None
        self._left = MOST_LINES
        self._done = False
        self.busy = False

    def entered(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Global trace function: whose lines are wanted?"""
        if self._root is None:
            if self._done or not self.wants(frame.f_code):
                return None
            if self._start is None:
                self._begin(frame)
            return self._in_root
        # below a frame that is not recorded nothing is: imports, and what this module itself calls
        if self.busy or self._start is None or not self._left or frame.f_back is not self._inner[-1]:
            return None
        if _WRAPPERS.match(frame.f_code.co_filename):
            return None
        made = self._frame(frame)
        if self._frames[-1]["lines"]:
            self._frames[-1]["lines"][-1][3].append(made)
        self._frames.append(made)
        self._inner.append(frame)
        return self._in_callee

    def wants(self, code: CodeType) -> bool:
        """Is it the code of the frame to record: this one of the functions of that name?"""
        if code.co_name != self._function or code.co_filename != self._file:
            return False
        wanted = self._until if self._start is None else self._start
        return any(line == wanted for _, line in dis.findlinestarts(code))

    def _in_root(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if self._root is None:
            if event == "return" or self._done:
                self._earlier.pop(frame, None)
                return self._in_root
            if event == "line" and frame.f_lineno == self._start:
                self._begin(frame)
            else:
                if event == "line":  # they may set what the statement reads
                    self._earlier.setdefault(frame, deque(maxlen=MOST_EARLIER)).append(self._row(frame))
                return self._in_root
        elif frame is not self._root:  # a recursive call, which is not recorded by itself
            return self._in_root
        if event == "return" or (event == "line" and self._is_over(frame.f_lineno)):
            self._end()
        elif event == "line":
            self._line(frame)
        return self._in_root

    def _in_callee(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if self._root is None:
            return None
        if event == "line":
            self._line(frame)
        elif event == "return" and len(self._frames) > 1:
            self._frames.pop()
            self._inner.pop()
        return self._in_callee

    def _is_over(self, line: int) -> bool:
        """Does this line of the recorded frame stand behind what is wanted?"""
        seen = self._frames[0]["lines"]
        if self._start is None:
            return bool(seen) and (seen[-1][0] == self._until or not self._left)
        first, last = self._sources.lines_of(self._file, self._start)
        return not first <= line <= last

    def _begin(self, frame: FrameType) -> None:
        self._root = frame
        self._frames, self._inner = [self._frame(frame)], [frame]
        self._frames[0]["lines"] += self._earlier.pop(frame, ())
        self._earlier.clear()
        self._outer: list[Any] = []
        around = frame.f_back
        while around is not None and len(self._outer) < MOST_OUTER:
            self._outer.append([self._code(around.f_code), around.f_lineno, self._values(around)])
            around = around.f_back
        self.busy = True
        try:
            self._operators = operators_to(self)
        finally:
            self.busy = False

    def _end(self) -> None:
        self.busy = True
        try:
            if self._operators is not None:
                self._operators.__exit__(None, None, None)
        finally:
            self.busy = False
        self._root, self._done = None, True
        sys.settrace(None)
        self._write()

    def close(self) -> None:
        """The process ends: what was recorded until now counts."""
        if self._root is not None:
            self._end()

    def _write(self) -> None:
        found = {
            "code": [
                [os.path.join(self._folder, code.co_filename), code.co_name, code.co_firstlineno]
                for code in self._codes
            ],
            "outer": self._outer, "tree": self._frames[0], "truncated": not self._left,
        }  # fmt: skip
        draft = f"{self._path}.{os.getpid()}"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(draft, self._path)

    def operator(self, name: str) -> None:
        """An operator ran on the current line."""
        if self._root is not None and self._frames[-1]["lines"]:
            self._frames[-1]["lines"][-1][2].append(name)

    def _frame(self, frame: FrameType) -> dict[str, Any]:
        return {"code": self._code(frame.f_code), "lines": []}

    def _code(self, code: CodeType) -> int:
        return self._codes.setdefault(code, len(self._codes))

    def _line(self, frame: FrameType) -> None:
        if self._left:
            self._left -= 1
            self._frames[-1]["lines"].append(self._row(frame))

    def _row(self, frame: FrameType) -> list[Any]:
        return [frame.f_lineno, self._values(frame), [], []]

    def _values(self, frame: FrameType) -> Values:
        """What the names on the current line hold before it runs."""
        self.busy = True
        try:
            names = self._sources.names(frame.f_code.co_filename, frame.f_lineno)
            return {text: text_of(text, node, frame) for text, node in names.items()} if names else {}
        finally:
            self.busy = False


def operators_to(recorder: Recorder) -> Any:
    """Tell `recorder` of every operator from now on; returns the mode, entered; None before torch is imported."""
    if "torch" not in sys.modules:
        return None
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else a frame of the compiler's stands between

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before, recorder.busy = recorder.busy, True
            try:
                if not before:
                    recorder.operator(str(func))
                return func(*args, **(kwargs or {}))
            finally:
                recorder.busy = before

    mode: Any = Operators  # torch's modes have no types
    mode = mode()
    mode.__enter__()
    return mode


class Sources:
    """Statements of source files by their lines."""

    def __init__(self) -> None:
        self._statements: dict[str, dict[int, ast.stmt]] = {}
        self._functions: dict[str, dict[int, ast.stmt]] = {}
        self._names: dict[tuple[str, int], dict[str, ast.expr]] = {}

    def statement(self, file: str, line: int) -> ast.stmt | None:
        """The innermost statement that this line is of; None where there is no source."""
        return self._read(file).get(line)

    def statement_at(self, file: str, first: int) -> ast.stmt | None:
        """The function or class whose code begins at this line, with its decorators."""
        self._read(file)
        return self._functions[file].get(first)

    def function_of(self, file: str, line: int) -> int:
        """First line of the innermost function that this line is of; 0 where it is of none."""
        self._read(file)
        known = self._functions[file].items()
        return max((first for first, node in known if first <= line <= (node.end_lineno or first)), default=0)

    def class_of(self, file: str, first: int) -> ast.ClassDef | None:
        """The class that the function beginning at this line is a method of."""
        function = self.statement_at(file, first)
        owners = [node for node in self._functions[file].values() if isinstance(node, ast.ClassDef)]
        return next((owner for owner in owners if function in owner.body), None)

    def calls(self, file: str) -> Iterator[ast.Call]:
        """Every call that is written in this file."""
        for statement in dict.fromkeys(self._read(file).values()):
            for part in head(statement):
                yield from (node for node in ast.walk(part) if isinstance(node, ast.Call))

    def _read(self, file: str) -> dict[int, ast.stmt]:
        if file not in self._statements:
            self._statements[file], self._functions[file] = _statements(file)
        return self._statements[file]

    def lines_of(self, file: str, line: int) -> tuple[int, int]:
        """First and last line of the statement (of a compound one: of its head) that `line` is of."""
        statement = self.statement(file, line)
        if statement is None:
            return line, line
        parts = head(statement)
        if parts == [statement]:
            return statement.lineno, statement.end_lineno or line
        return statement.lineno, max([statement.lineno, *(getattr(part, "end_lineno", 0) for part in parts)])

    def names(self, file: str, line: int) -> dict[str, ast.expr]:
        """Names, attributes and constant subscripts that the statement of this line reads, by their text."""
        key = file, line
        if key not in self._names:
            statement = self.statement(file, line)
            parts = [] if statement is None else head(statement)
            self._names[key] = {ast.unparse(node): node for part in parts for node in reads(part)}
        return self._names[key]


def head(statement: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates itself, not what stands below it."""
    if isinstance(statement, (ast.If, ast.While)):
        return [statement.test]
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try)):
        return []
    subject = getattr(statement, "subject", None)  # of match
    return [statement] if subject is None else [subject]


def reads(node: ast.AST) -> Iterator[ast.expr]:
    """The longest chains of names, attributes and constant subscripts below `node`."""
    if isinstance(node, _OPAQUE):
        return
    if _is_chain(node):
        if isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]
        return
    for child in ast.iter_child_nodes(node):
        yield from reads(child)


def _is_chain(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return _is_chain(node.value)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and _is_chain(node.value)
    return isinstance(node, ast.Name)


def text_of(name: str, node: ast.expr, frame: FrameType) -> str:
    """What a chain holds in `frame`, as text; what cannot be read is `UNKNOWN`. Properties are asked."""
    try:
        return shown(name, _value(node, frame))
    except Exception:  # any object of the job's may raise anything
        return UNKNOWN


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        for scope in (frame.f_locals, frame.f_globals, vars(builtins)):
            if node.id in scope:
                return scope[node.id]
        return _Unknown
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr)
    assert isinstance(node, ast.Subscript)
    owner, key = _value(node.value, frame), node.slice
    assert isinstance(key, ast.Constant)
    return owner[key.value] if type(owner) in (dict, list, tuple) else _Unknown


class _Unknown:
    """Stands for what cannot be read."""


def shown(name: str, value: Any) -> str:
    """`value` in a word: plain values as they are, of all others what they are. No secrets."""
    if value is _Unknown:
        return UNKNOWN
    if value is None or isinstance(value, (bool, int, float, str, enum.Enum)):
        text = str(value) if isinstance(value, enum.Enum) else repr(value)
        secret = isinstance(value, str) and (_SECRET.search(name) or _LONG.search(text))
        # a digest tells two apart; the file it is in is private, and what reads it leaves it out
        return f"{HIDDEN}{hashlib.sha256(text.encode()).hexdigest()}" if secret else text[:80]
    if isinstance(value, (list, tuple, dict, set)):
        return f"{type(value).__name__} of {len(value)}"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "Size"):
        return str(value)
    named = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(named, str):
        return f"{getattr(value, '__module__', None) or 'builtins'}.{named}"
    return f"a {type(value).__name__}"


def _statements(file: str) -> tuple[dict[int, ast.stmt], dict[int, ast.stmt]]:
    """Of a file: statements by their lines, functions and classes by their first one."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):  # generated code has no file
        return {}, {}
    found: dict[int, ast.stmt] = {}
    functions: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            functions[min([node.lineno, *(each.lineno for each in node.decorator_list)])] = node
    return found, functions
