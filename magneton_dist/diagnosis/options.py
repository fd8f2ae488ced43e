"""Options of a command line: where a script declares one, and which words of a job set it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from magneton_dist.diagnosis.lines import Sources


def declared(name: str, files: Iterable[str], sources: Sources) -> str:
    """Where a call in one of `files` declares the option that a parser keeps as `name`, in words; empty: nowhere.

    Parsers (argparse, click, typer) are told ``--some-name``, and keep it as ``some_name``, or as what `dest` says.
    """
    for file in files:
        for call in sources.calls(file):
            texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            flags = [text for text in texts if isinstance(text, str) and text.startswith("-")]
            kept = [k.value.value for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)]
            if flags and (name in kept or (not kept and name in map(_kept_as, flags))):
                return f"option {flags[-1]} ({file}:{call.lineno})"
    return ""


def words(name: str, shown: str, args: Sequence[str]) -> str:
    """The words among `args` that set option `name` to what is `shown`; empty where none does."""
    for place, word in reversed(list(enumerate(args))):
        flag, equals, value = word.partition("=")
        if not flag.startswith("-") or _kept_as(flag) != name:
            continue
        if equals:
            return word if shown in (value, repr(value)) else ""
        following = args[place + 1 : place + 2]
        if following and shown in (following[0], repr(following[0])):
            return f"{word} {following[0]}"
        return word if shown in ("True", "False") else ""
    return ""


def _kept_as(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
