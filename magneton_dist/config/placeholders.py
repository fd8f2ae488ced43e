"""Placeholders in a job's texts, such as ``{run_dir}``; ``{{`` and ``}}`` are literal braces."""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDERS = ("run_dir", "variant", "repeat", "seed")

_PART = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")


def placeholders(text: str) -> list[str]:
    """Names of the placeholders in `text`, in order.

    Raises:
        ValueError: a brace stands alone.
    """
    names = []
    for part in _PART.finditer(text):
        if part["stray"]:
            raise ValueError(f"a single {part['stray']} in {text!r}")
        if part["name"] is not None:
            names.append(part["name"])
    return names


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders filled in and its doubled braces made single."""
    return _PART.sub(lambda part: part[0][0] if part["name"] is None else values[part["name"]], text)


def literal(text: str) -> str:
    """`text` with its braces doubled, so that `expand` gives it back."""
    return text.replace("{", "{{").replace("}", "}}")
