"""Which getters of torch's global settings each setting answers: asked of torch itself, once for each version.

Every setting is changed in a fresh process, and every getter asked before and after. Getters that throw are found
first, each in a process of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from magneton_dist.diagnosis.trial import Trial

PRECISIONS = ("ieee", "tf32", "bf16")
MATMUL_PRECISIONS = ("highest", "high", "medium")


class KnobMap(msgspec.Struct, frozen=True):
    """`getters`: setting -> getters whose answer it changes. `asked`: getters that can be asked."""

    asked: list[str]
    getters: dict[str, list[str]]


def cache_folder() -> Path | None:
    """The user's own for this program; None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "magneton-dist"
    except RuntimeError:
        return None


def knob_map(trial: Trial, torch_version: str, folder: Path | None = None) -> KnobMap:
    """The map of this torch, from `folder` (default: the user's cache) or made now and kept there if it can be.

    Args:
        trial: whose world A settings are changed in.
        torch_version: of the fresh processes.
        folder: where maps are kept.

    Raises:
        OutOfTimeError: making it took too long.
    """
    known = trial.known_getters
    folder = folder or cache_folder()
    if folder is None:
        return _made(trial, known)
    path = folder / f"knobs-{re.sub(r'[^0-9A-Za-z.]', '_', torch_version)}.json"
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=KnobMap)
        if set(kept.asked) <= set(known) and kept.getters.keys() >= _changes(trial).keys():
            return kept
    except (OSError, msgspec.MsgspecError):  # not made yet, or by another version of this program
        pass
    made = _made(trial, known)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(made))
        draft.replace(path)
    except OSError:  # a folder that cannot be written costs the next diagnosis a few seconds
        pass
    return made


def _made(trial: Trial, known: list[str]) -> KnobMap:
    asked = [name for name in known if trial.getters([name]) is not None]
    before = trial.getters(asked) or {}
    found: dict[str, list[str]] = {}
    for name, values in _changes(trial).items():
        changed: set[str] = set()
        for value in values:
            after = trial.getters(asked, [(name, value)]) or before
            changed |= {getter for getter in asked if after[getter] != before[getter]}
        found[name] = sorted(changed)
    return KnobMap(asked, found)


def _changes(trial: Trial) -> dict[str, list[str]]:
    """Other values that each setting may have."""
    found = {}
    for name, value in trial.switchable.items():
        if value in ("True", "False"):
            found[name] = ["False" if value == "True" else "True"]
        elif name.endswith("fp32_precision"):
            found[name] = [other for other in PRECISIONS if other != value]
        elif name.endswith("float32_matmul_precision"):
            found[name] = [other for other in MATMUL_PRECISIONS if other != value]
    return found
