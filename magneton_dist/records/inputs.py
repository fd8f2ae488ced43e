"""Contents of operators' inputs that a record holds for replay: user data, only its owner reads it.

One file a value, ``input-<value id>.bin`` in the rank's folder: its elements in the order of its shape.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"input-(\d+)\.bin")


def keep_inputs(segments: Path, folder: Path) -> None:
    """Move contents from beside a spool's segments into the rank's folder."""
    for path in sorted(segments.iterdir()):
        if _NAME.fullmatch(path.name):
            kept = folder / path.name
            kept.touch(mode=0o600)
            kept.write_bytes(path.read_bytes())
            path.unlink()


def kept_inputs(folder: Path) -> dict[int, Path]:
    """Value id -> file of its contents, of the rank in `folder`."""
    found = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(match[1]): path for match, path in found if match}


def forget_inputs(folder: Path) -> None:
    """Delete the contents of the rank in `folder`."""
    for path in kept_inputs(folder).values():
        path.unlink(missing_ok=True)
