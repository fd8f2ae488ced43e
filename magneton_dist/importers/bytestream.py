"""The bytes of a trace file, decompressed piece by piece, and what kind of file it is."""

from __future__ import annotations

import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from magneton_dist.errors import RecordError

PIECE = 256 << 10  # small enough to stay in a cache
# Deflate reaches 1,032:1; real traces compress 10 to 100 times.
BOMB_RATIO = 400
BOMB_BYTES = 256 << 20
GZIP = b"\x1f\x8b"

_EVENTS = re.compile(rb'"(?:traceEvents|ph)"\s*:')
_MAGIC = (
    (b"SQLite format 3", "an Nsight Systems export (SQLite)"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x80", "a pickle, such as a flight recorder's dump or a memory snapshot"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program"),
)
DO = "give the JSON that torch.profiler exports (export_chrome_trace), one file per rank"


def pieces(path: Path) -> Iterator[bytes]:
    """The content of `path`, unpacked where it is gzip, in pieces of at most `PIECE` bytes.

    Raises:
        RecordError: it is no file, cannot be read, is compressed and damaged or cut off, or unpacks without bound.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for whoever writes it
            raise RecordError("is no file", where=str(path), do=DO)
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == GZIP:
                yield from _unpacked(path, file)
            else:
                while piece := file.read(PIECE):
                    yield piece
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _unpacked(path: Path, file: object) -> Iterator[bytes]:
    read = file.read  # type: ignore[attr-defined]
    packed = unpacked = 0
    engine = zlib.decompressobj(wbits=31)
    data = b""
    while True:
        if not data:
            data = read(PIECE // 16)
            if not data:
                break
            packed += len(data)
        if engine.eof:
            # another member may follow, or padding
            data = data.lstrip(b"\0")
            if not data:
                continue
            engine = zlib.decompressobj(wbits=31)
        try:
            piece = engine.decompress(data, PIECE)
        except zlib.error as error:
            where = f"{path}: near byte {packed} of the gzip"
            raise RecordError(f"its compression is damaged: {error}", where=where, do="copy it again") from error
        data = engine.unused_data if engine.eof else engine.unconsumed_tail
        unpacked += len(piece)
        if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed:
            what = f"unpacks to more than {BOMB_RATIO} times its size: no trace does"
            raise RecordError(what, where=f"{path}: byte {packed} of the gzip", do=DO)
        if piece:
            yield piece
    if not engine.eof:
        what = f"the gzip is cut off at byte {packed} ({unpacked} bytes unpacked)"
        raise RecordError(what, where=str(path), do="copy it again, or profile again")


def refuse_other_kinds(path: Path, start: bytes) -> None:
    """Raise a `RecordError` that names the kind of file when `start`, its beginning, is no trace's."""
    kind = _kind(path, start)
    if kind is not None:
        raise RecordError(f"is {kind}, not a profiler trace", where=str(path), do=DO)


def _kind(path: Path, start: bytes) -> str | None:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        return "empty" if not start else "blank"
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind
    if path.suffix == ".nsys-rep":
        return "an Nsight Systems report"
    if text[:1] not in (b"{", b"["):
        return "no JSON"
    if _EVENTS.search(text, 0, 65536):
        return None
    keys = set(re.findall(rb'"(\w+)"\s*:', text[:65536]))
    if {b"schema", b"nodes"} <= keys:
        return "a PyTorch execution trace"
    if {b"pg_config", b"entries"} <= keys or {b"pg_status", b"entries"} <= keys:
        return "a flight recorder's dump"
    if b"CuptiActivityKind" in text[:65536] or keys & {b"nsys", b"CudaEvent", b"TraceProcessEvent"}:
        return "an Nsight Systems export (JSON)"
    return None
