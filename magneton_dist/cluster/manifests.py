"""Files and folders that must be whole or not there, and what the manifest says of this software."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("magneton-dist", "ray", "torch", "polars")


def store(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into `folder`, each under the last part of its name, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        draft = folder / f".{Path(name).name}.tmp"
        draft.touch(mode=0o600 if name.endswith(".bin") else 0o666)  # contents of tensors are their owner's
        draft.write_bytes(content)
        draft.replace(folder / Path(name).name)


def delete(folder: Path, aside: Path) -> None:
    """Delete `folder`, renamed to `aside` first: who comes in between finds all of it or nothing."""
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def versions() -> dict[str, str]:
    """Versions of what makes the records."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):  # run from a source tree, or torch is in the job's environment only
            found[package] = version(package)
    return found
