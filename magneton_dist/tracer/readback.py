"""Small results computed on a device, on their way to the host without anybody waiting for them."""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 1 << 16  # results that share one allocation


class Readback:
    """Numbers computed on one stream of a device, float64.

    Args:
        device: where they are computed.
        stream: on which stream; None on a CPU.
    """

    def __init__(self, device: torch.device, stream: Any) -> None:
        self._device = device
        self._stream = stream
        self._blocks: list[torch.Tensor] = []
        self._used = BLOCK
        self._host: torch.Tensor | None = None
        self._copied: Any = None

    def room(self, count: int) -> tuple[int, torch.Tensor]:
        """Place of `count` (at most BLOCK) results among the numbers, and where to write them."""
        if self._used + count > BLOCK:
            self._blocks.append(torch.zeros(BLOCK, dtype=torch.float64, device=self._device))
            self._used = 0
        start = self._used
        self._used += count
        return (len(self._blocks) - 1) * BLOCK + start, self._blocks[-1][start : start + count]

    def send(self) -> None:
        """Nothing more will be written: start the way to the host."""
        if self._stream is None:
            self._host = torch.cat(self._blocks)
        else:
            with torch.cuda.stream(self._stream):
                count = len(self._blocks) * BLOCK
                self._host = torch.empty(count, dtype=torch.float64, pin_memory=True)
                self._host.copy_(torch.cat(self._blocks), non_blocking=True)
                self._copied = torch.cuda.Event()
                self._copied.record()
        self._blocks = []

    def arrived(self) -> bool:
        """Is everything on the host? Asks, never waits."""
        return self._host is not None and (self._copied is None or bool(self._copied.query()))

    def numbers(self) -> torch.Tensor:
        """What was written, once it has `arrived`."""
        assert self._host is not None
        return self._host
