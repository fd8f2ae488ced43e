"""Which frames of a stack are the user's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Frames of the frameworks that carry a call from the user's line to the collective.
_FRAMEWORK = re.compile(
    r"(^<|[/\\]site-packages[/\\](torch|magneton_dist|accelerate|lightning|pytorch_lightning|deepspeed)[/\\]"
    r"|[/\\]magneton_dist[/\\](tracer|sync)[/\\]|[/\\]contextlib\.py:|[/\\]runpy\.py:|[/\\]threading\.py:)"
)


def user_frames(stack: Sequence[str]) -> list[str]:
    """The frames ``file:line function`` of `stack` (innermost first) outside the frameworks, same order."""
    return [frame for frame in stack if not _FRAMEWORK.search(frame)]


def user_line(stack: Sequence[str]) -> str | None:
    """The innermost ``file:line`` of the user's own code in `stack`, or None when there is none."""
    frames = user_frames(stack)
    return frames[0].split(" ", 1)[0] if frames else None
