"""Which audits run on this machine: two at once spoil each other's figures.

Each holds an abstract Unix socket whose name says so. The kernel lists them and drops them with their owner,
so there is no lock file to go stale.
"""

from __future__ import annotations

import socket
from pathlib import Path

_PREFIX = "magneton-dist-audit/"
_LONGEST = 64  # a socket's name ends at 107 bytes


class Presence:
    """This audit's mark on the machine; several processes of one audit may hold it.

    Args:
        audit: tells audits apart by its first 64 characters.
        holder: tells the processes of one audit apart.
    """

    def __init__(self, audit: str, holder: str) -> None:
        self._audit = audit[:_LONGEST]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{_PREFIX}{self._audit}/{holder}")

    def others(self) -> list[str]:
        """Names of the other audits that run on this machine now."""
        marks = (line.split("@" + _PREFIX, 1) for line in Path("/proc/net/unix").read_text().splitlines())
        return sorted({mark[1].split("/")[0] for mark in marks if len(mark) == 2} - {self._audit})

    def close(self) -> None:
        """Take the mark away."""
        self._socket.close()
