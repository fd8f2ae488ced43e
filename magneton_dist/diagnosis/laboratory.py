"""Fresh processes that answer questions: one zygote for each environment, which makes one for each question."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from magneton_dist.errors import MagnetonError

LIMIT_S = 60.0  # of one question
START_LIMIT_S = 120.0  # of importing torch
MOST_ZYGOTES = 8


class OutOfTimeError(MagnetonError):
    """The time for a diagnosis is over."""


class Laboratory:
    """Asks questions of fresh processes until `budget_s` is over; ends them all when closed."""

    def __init__(self, budget_s: float) -> None:
        self._end_s = time.monotonic() + budget_s
        self._zygotes: dict[tuple[tuple[str, str], ...], subprocess.Popen[bytes]] = {}
        self._greetings: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        self.asked = 0

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for zygote in self._zygotes.values():
            _end(zygote)
        self._zygotes.clear()

    def ask(
        self, environment: Mapping[str, str], question: Mapping[str, Any], limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """What a fresh process in this environment answers; `error` in it says why it could not, `lost` that it
        was not the call that said so: it was killed, or took too long.

        Args:
            environment: all of it.
            question: as `magneton_dist.diagnosis.zygote.answer` takes it.
            limit_s: time that it may take.

        Raises:
            OutOfTimeError: the budget is used up.
        """
        self.asked += 1
        key, zygote = self._zygote(environment)
        assert zygote.stdin is not None
        left = min(limit_s, self.left_s())
        line = json.dumps({**question, "limit_s": max(1, int(left))}).encode() + b"\n"
        try:
            zygote.stdin.write(line)
            zygote.stdin.flush()
            found: dict[str, Any] = json.loads(_line(zygote, left + 5.0))
        except (OSError, ValueError):
            _end(self._zygotes.pop(key))
            self.left_s()
            return {"error": "the process ended, or took too long", "lost": True}
        return found

    def greeting(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """What a zygote says of itself: torch's version, getters that can be asked."""
        return self._greetings[self._zygote(environment)[0]]

    def _zygote(self, environment: Mapping[str, str]) -> tuple[tuple[tuple[str, str], ...], subprocess.Popen[bytes]]:
        key = tuple(sorted(environment.items()))
        if key in self._zygotes and self._zygotes[key].poll() is not None:
            _end(self._zygotes.pop(key))  # somebody killed it
        if key not in self._zygotes:
            self._zygotes[key], self._greetings[key] = self._start(environment)
        return key, self._zygotes[key]

    def _start(self, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        if len(self._zygotes) >= MOST_ZYGOTES:
            _end(self._zygotes.pop(next(iter(self._zygotes))))
        zygote = subprocess.Popen(
            [sys.executable, "-P", "-m", "magneton_dist.diagnosis.zygote"],
            env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            greeting = json.loads(_line(zygote, min(START_LIMIT_S, self.left_s())))
        except BaseException as error:
            _end(zygote)
            if not isinstance(error, ValueError):
                raise
            self.left_s()
            raise MagnetonError(
                "a fresh process with torch did not start", where=sys.executable,
                do="see whether `python -c 'import torch'` works",
            ) from error  # fmt: skip
        return zygote, greeting

    def left_s(self) -> float:
        """Time that is left, seconds.

        Raises:
            OutOfTimeError: none is.
        """
        left = self._end_s - time.monotonic()
        if left <= 0:
            raise OutOfTimeError("the time for the diagnosis is over", do="give more with --budget")
        return left


def _line(zygote: subprocess.Popen[bytes], limit_s: float) -> bytes:
    """The next line it says; ValueError when there is none in time."""
    assert zygote.stdout is not None
    end_s, data = time.monotonic() + limit_s, b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([zygote.stdout], [], [], max(0.0, end_s - time.monotonic()))
        more = os.read(zygote.stdout.fileno(), 1 << 16) if ready else b""
        if not more:
            raise ValueError("no line")
        data += more
    return data


def _end(zygote: subprocess.Popen[bytes]) -> None:
    zygote.kill()  # what it forked ends with it
    for pipe in (zygote.stdin, zygote.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    zygote.wait()
