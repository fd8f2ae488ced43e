"""audit.json on disk: written whole or not at all, read strictly."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from magneton_dist.errors import InputError, RecordError
from magneton_dist.records.audit import AUDIT_VERSION, Audit


class _Version(msgspec.Struct):
    schema_version: int


def write_audit_json(audit: Audit, path: Path) -> None:
    """Write `audit` to `path` as indented JSON, atomically.

    Raises:
        RecordError: a figure is not a finite number (JSON has no word for it, null means unknown).
    """
    data = msgspec.json.encode(audit)
    try:  # NaN and infinity are encoded as null: not equal, or not allowed

        whole = _decoder.decode(data) == audit
    except msgspec.ValidationError:
        whole = False
    if not whole:
        raise RecordError("a figure of the audit is no finite number", where=str(path), do="report this bug")
    write_atomically(path, msgspec.json.format(data, indent=2) + b"\n")


def read_audit_json(path: Path) -> Audit:
    """Read `path`.

    Raises:
        RecordError: not there, not JSON, of a newer schema, or with other types than `Audit` declares.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"cannot be read: {error.strerror}", where=str(path), do="give the folder of an audit"
        ) from error
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version > AUDIT_VERSION:
            raise RecordError(
                f"schema version {version}, this magneton-dist reads up to {AUDIT_VERSION}",
                where=str(path),
                do="read it with the magneton-dist version that wrote it",
            )
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RecordError(
            f"is no audit.json: {error}", where=str(path), do="write it again: magneton-dist audit RECORD"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name in the same folder, then rename it to `path`.

    Raises:
        InputError: it cannot be written there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        do = "give a file in a folder that is there and may be written to"
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), do=do) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


_decoder = msgspec.json.Decoder(Audit)
