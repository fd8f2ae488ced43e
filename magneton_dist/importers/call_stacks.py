"""Call stacks of a trace: of Python functions that the profiler followed, or written beside an operator."""

from __future__ import annotations

import re

import polars as pl

from magneton_dist.importers.events import number
from magneton_dist.importers.fields import NONE
from magneton_dist.importers.names import Names
from magneton_dist.records.schema import I64, STACKS

DEEPEST_STACK = 128
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)


class Stacks:
    """Call stacks by id, each once."""

    def __init__(self, names: Names, functions: pl.DataFrame) -> None:
        self._texts = names.texts() if functions.height else []
        self._functions = functions
        self._row_of = dict(zip(functions["python"].to_list(), range(functions.height), strict=True))
        self._ids: dict[tuple[str, ...], int] = {}
        self._of_text: dict[int, int] = {}

    def of_function(self, row: int) -> int:
        """The stack whose innermost frame is the Python function in this row."""
        frames: list[str] = []
        at: int | None = row
        while at is not None and len(frames) < DEEPEST_STACK:
            name, parent = self._functions["name"][at], self._functions["parent"][at]
            frames.append(self._texts[name])
            at = self._row_of.get(parent)
        return self._id(frames)

    def of_text(self, texts: list[str], text: int) -> int | None:
        """The stack that an operator's ``Call stack`` says; None where it says nothing."""
        if text == NONE:
            return None
        if text not in self._of_text:
            self._of_text[text] = self._id([f for f in texts[text].split(";") if f.strip()][:DEEPEST_STACK])
        return self._of_text[text]

    def of_texts(self, texts: list[str], ids: pl.Series) -> pl.Series:
        """The stacks of many operators."""
        ids = ids.cast(I64)
        known = ids.unique().sort().to_list()
        found = pl.Series([self.of_text(texts, text) for text in known], dtype=I64)
        return ids.replace_strict(pl.Series(known, dtype=I64), found, return_dtype=I64)

    def _id(self, frames: list[str]) -> int:
        return self._ids.setdefault(tuple(frames), len(self._ids))

    def table(self) -> pl.DataFrame:
        """All of them (`STACKS`)."""
        stacks = [[_frame(text) for text in frames] for frames in self._ids]
        return pl.DataFrame({"stack_id": range(len(stacks)), "frames": stacks}, schema=STACKS.schema)


def _frame(text: str) -> dict[str, str | int | None]:
    found = _FRAME.match(text)
    if found is None:
        return {"file": "", "line": None, "function": text}
    line = number(found["line"])
    return {"file": found["file"], "line": line if line is not None and line < 1 << 31 else None,
            "function": found["function"]}  # fmt: skip
