"""Events of a trace, decoded batch by batch into typed structs; memory is bounded by the batch.

A batch ends where one event ends and another begins. Such a place is guessed from the bytes (`}, {`) and
proved by decoding: text cut inside an event is never whole JSON. Where a batch does not decode, its events
are taken one by one: mended where it is clear how, else dropped; both are counted. Strict reading raises at
the first of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from magneton_dist.errors import RecordError
from magneton_dist.importers.bytestream import DO, pieces, refuse_other_kinds
from magneton_dist.importers.events import DEVICE, Args, BareEvent, DeviceEvent, Event, Head

MOST_HEAD = 64 << 20  # of what stands before or after the events
MOST_EVENT = 64 << 20
MOST_TRIES = 64  # places inside one event that look like its end

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_ENDS = re.compile(rb"\}\s*,\s*$")
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|bind_id)"\s*:)')
_BYTE = re.compile(r"\(byte (\d+)\)")
_NAME = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*(?:\}|,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp|bind_id)"\s*:))', re.DOTALL
)
_QUOTE = re.compile(rb'(?<!\\)"')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SURROGATE = re.compile(rb"(?i)\\ud[89a-f][0-9a-f]{2}")
_NO_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:NaN|Infinity)\b")
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"]*)"')

T = TypeVar("T")

_events = msgspec.json.Decoder(list[Event])
_device_events = msgspec.json.Decoder(list[DeviceEvent])
_event = msgspec.json.Decoder(Event)
_bare = msgspec.json.Decoder(BareEvent)
_args = msgspec.json.Decoder(Args | None)
_head = msgspec.json.Decoder(Head)


class EventStream:
    """One pass over the events of one file.

    Args:
        path: of the file; JSON or gzip of it.
        strict: raise where an event cannot be read, instead of mending or dropping it.
        device_only: read no arguments but those of `events.DeviceArgs`, which is faster.

    Attributes:
        head: what stands beside the events; complete after the last batch.
        mended, dropped: events, by reason.
        lost_activities: of those dropped the ones that may have been on a device.
    """

    def __init__(self, path: Path, *, strict: bool = False, device_only: bool = False) -> None:
        self.path = path
        self.strict = strict
        self.head = Head()
        self.mended: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.lost_activities = 0
        self._pieces = pieces(path)
        self._decode: Callable[[bytes], Sequence[Event]] = (_device_events if device_only else _events).decode
        self._offset = 0  # of the buffer within the unpacked file
        self._over = False

    def batches(self) -> Iterator[Sequence[Event]]:
        """The events, in the order of the file.

        Raises:
            RecordError: it is another kind of file, cut off, or (strict) holds an event that cannot be read.
        """
        buffer = self._first_event()
        while not self._over:
            piece = next(self._pieces, b"")
            buffer += piece
            events, rest = self._last(buffer) if not piece else self._whole(buffer)
            self._offset += len(buffer) - len(rest)
            buffer = rest
            if len(buffer) > MOST_EVENT and not self._over:
                raise RecordError(f"one event is longer than {MOST_EVENT >> 20} MiB", where=self._at(0), do=DO)
            yield events
        self._read_tail(buffer)

    def _first_event(self) -> bytes:
        """The bytes after the opening bracket of the events."""
        buffer = next(self._pieces, b"")
        refuse_other_kinds(self.path, buffer)
        blank = len(buffer) - len(buffer.lstrip(b"\xef\xbb\xbf \t\r\n"))
        if buffer[blank : blank + 1] == b"[":
            self._offset = blank + 1
            return buffer[blank + 1 :]
        searched = 0
        while (found := _START.search(buffer, searched)) is None:
            searched = max(0, len(buffer) - 64)
            piece = next(self._pieces, b"")
            if not piece or len(buffer) > MOST_HEAD:
                raise RecordError("holds no traceEvents: it is no profiler trace", where=str(self.path), do=DO)
            buffer += piece
        before = buffer[blank : found.start()].rstrip().removesuffix(b",")
        self._read_head(before + b"}" if before != b"{" else b"{}")
        self._offset = found.end()
        return buffer[found.end() :]

    def _whole(self, buffer: bytes) -> tuple[Sequence[Event], bytes]:
        """The events that `buffer` holds whole, and the bytes after them."""
        end = len(buffer)
        for _ in range(MOST_TRIES):
            end = buffer.rfind(b"{", 0, end)
            if end < 0:
                break
            comma = _ENDS.search(buffer, max(0, end - 256), end)
            if comma is None:
                continue
            part = memoryview(buffer)[: comma.start() + 1]
            try:
                return self._decode(b"".join((b"[", part, b"]"))), buffer[end:]
            except msgspec.DecodeError as error:
                if "truncated" in str(error):
                    continue
                if "trailing" in str(error):
                    return self._array_end(buffer, error)
            except UnicodeDecodeError:
                pass
            events, left = self._one_by_one(bytes(part))
            return events, buffer[len(part) - len(left) :] if left or self._over else buffer[end:]
        return [], buffer

    def _last(self, buffer: bytes) -> tuple[Sequence[Event], bytes]:
        """The events of what is left when the file has ended."""
        try:
            events = self._decode(b"[" + buffer)
            self._over = True
            return events, b""
        except msgspec.DecodeError as error:
            if "trailing" in str(error):
                return self._array_end(buffer, error)
            if "truncated" in str(error):
                raise self._cut_off(buffer) from error
        except UnicodeDecodeError:
            pass
        events, left = self._one_by_one(buffer, last=True)
        if not self._over:
            if not buffer.rstrip().endswith((b"}", b"]")):
                raise self._cut_off(buffer)
            self._over = True
        return events, left

    def _cut_off(self, buffer: bytes) -> RecordError:
        what = f"the JSON is cut off at byte {self._offset + len(buffer)}"
        return RecordError(what, where=str(self.path), do="copy it again, or profile again")

    def _array_end(self, buffer: bytes, error: msgspec.DecodeError) -> tuple[Sequence[Event], bytes]:
        """The events up to the closing bracket that `error` stands behind."""
        self._over = True
        end = buffer.rfind(b"]", 0, _position(error) - 1) + 1
        return self._decode(b"[" + buffer[:end]), buffer[end:]

    def _one_by_one(self, part: bytes, *, last: bool = False) -> tuple[Sequence[Event], bytes]:
        """Every event of `part` that can be read, and what follows: the tail of the file, or an open event."""
        events: list[Event] = []
        starts = [0, *(m.end() for m in _BETWEEN.finditer(part)), len(part)]
        begin = tries = 0
        for end in starts[1:]:
            text = part[begin:end].rstrip(b", \t\r\n")
            try:
                read = _single(_event, text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if "truncated" in str(error) and tries < MOST_TRIES:
                    tries += 1
                    if end < len(part):
                        continue  # a place inside the event that looked like its end
                    if not last:
                        return events, part[begin:]
                read = self._mended(text, error, begin)
            event, left = read
            if event is not None:
                events.append(event)
            if left is not None:
                self._over = True
                return events, part[end - len(left) :] if end == len(part) else left + part[end:]
            begin, tries = end, 0
        return events, b""

    def _mended(self, text: bytes, error: Exception, begin: int) -> tuple[Event | None, bytes | None]:
        """The event after its repair, None where there is none, and what follows the closing bracket."""
        reason = _reason(error)
        if self.strict:
            inside = _position(error) if isinstance(error, msgspec.DecodeError) else 0
            where, do = self._at(begin + inside), "read it without --strict"
            raise RecordError(f"{reason}: {error}", where=where, do=do) from error
        for mend in (_valid_text, _valid_numbers, _escaped):
            text = mend(text)
            try:
                mended = _single(_event, text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            self.mended[reason] += 1
            return mended
        try:
            read = _single(_bare, text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.dropped[reason] += 1
            category = _CATEGORY.search(text)
            self.lost_activities += category is None or category[1].decode(errors="replace").lower() in DEVICE
            return None, None
        bare, left = read
        if bare is None:
            return None, left
        name = bare.name
        if not isinstance(name, str | None):
            self.mended["a name that is no text"] += 1
            name = str(name)
        try:
            args = _args.decode(bare.args) if bare.args else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.mended["arguments of an unknown type"] += 1
            args = Args()
        return Event(bare.ph, bare.cat, name, bare.ts, bare.dur, bare.pid, bare.tid, args), left

    def _read_tail(self, rest: bytes) -> None:
        """What stands after the events."""
        tail = [rest]
        size = len(rest)
        for piece in self._pieces:
            size += len(piece)
            if size > MOST_HEAD:
                raise RecordError(
                    f"has more than {MOST_HEAD >> 20} MiB after its events", where=self._at(0), do=DO
                )
            tail.append(piece)
        after = b"".join(tail).strip()
        if after.startswith(b","):
            self._read_head(b"{" + after[1:])
        elif after not in (b"", b"}"):
            raise RecordError("malformed JSON: the events end too early", where=self._at(0), do="copy it again")

    def _read_head(self, text: bytes) -> None:
        try:
            self.head = self.head.merged(_head.decode(text))
            return
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = str(self.path)
            if "truncated" in str(error):
                raise RecordError("the JSON is cut off after its events", where=where, do="copy it again") from error
            if self.strict:
                what = f"metadata that cannot be read: {error}"
                raise RecordError(what, where=where, do="read it without --strict") from error
        try:
            self.head = self.head.merged(_head.decode(_valid_numbers(_valid_text(text))))
            self.mended["metadata that is damaged"] += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.mended["metadata that cannot be read"] += 1

    def _at(self, inside: int) -> str:
        return f"{self.path}: byte {self._offset + inside}"


def _position(error: Exception) -> int:
    found = _BYTE.search(str(error))
    return int(found.group(1)) if found else 0


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return "a field of an unknown type"
    return "text that is not UTF-8" if "UTF-8" in str(error) or "utf-8" in str(error) else "malformed JSON"


def _single(decoder: msgspec.json.Decoder[T], text: bytes) -> tuple[T | None, bytes | None]:
    """The one event in `text`; where the closing bracket is in there, what is after it (None: it is not)."""
    if text.startswith(b"]"):
        return None, text[1:]
    try:
        return decoder.decode(text), None
    except msgspec.DecodeError as error:
        end = _position(error) - 1  # msgspec names the byte after the first one that trails
        if "trailing" not in str(error) or text[end : end + 1] != b"]":
            raise
        return decoder.decode(text[:end]), text[end + 1 :]


def _valid_text(text: bytes) -> bytes:
    """UTF-8 throughout, without escapes of half a character."""
    return _SURROGATE.sub(rb"\\ufffd", text.decode("utf-8", "replace").encode())


def _valid_numbers(text: bytes) -> bytes:
    """Null for what JSON has no number for; text that looks like it is not spared."""
    return _NO_NUMBER.sub(rb"\1null", text)


def _escaped(text: bytes) -> bytes:
    """Quotes and control characters inside the event's name, escaped."""

    def quoted(name: re.Match[bytes]) -> bytes:
        inner = _QUOTE.sub(rb"\\" + b'"', name[2])
        inner = _CONTROL.sub(lambda c: b"\\u%04x" % c[0][0], inner)
        return name[1] + inner + name[3]

    return _NAME.sub(quoted, text, count=1)
