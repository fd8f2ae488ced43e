"""Manifests of runs on disk, and other files that must be whole or not there."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from magneton_dist.errors import RecordError
from magneton_dist.records.manifest import Manifest

MANIFEST = "manifest.json"
_PACKAGES = ("magneton-dist", "ray", "torch", "polars")


def store(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into `folder`, each under the last part of its name, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        draft = folder / f".{Path(name).name}.tmp"
        draft.write_bytes(content)
        draft.replace(folder / Path(name).name)


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write the manifest of the run in folder `run`."""
    store(run, {MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"})


def read_manifest(run: Path) -> Manifest:
    """The manifest of the run in folder `run`.

    Raises:
        RecordError: missing or damaged.
    """
    try:
        return msgspec.json.decode((run / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(run / MANIFEST), do="copy the run again") from error


def versions() -> dict[str, str]:
    """Versions of what makes the records."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):  # run from a source tree, or torch is in the job's environment only
            found[package] = version(package)
    return found
