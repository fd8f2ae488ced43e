"""Whether the servers behind Ray still answer.

A killed GCS ends the driver without an exception after a minute, and a killed raylet takes up to 15 s to be
noticed: a refused connection says so within a second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Hashable, Mapping
from typing import Generic, TypeAlias, TypeVar

_PERIOD_S = 0.5
_TIMEOUT_S = 2.0

Address: TypeAlias = tuple[str, int]
Name = TypeVar("Name", bound=Hashable)


class Vitals(Generic[Name]):
    """Probes servers by connecting to them, at most every half second.

    Args:
        servers: name -> address.
    """

    def __init__(self, servers: Mapping[Name, Address]) -> None:
        self._servers = dict(servers)
        self._due_s = 0.0

    def lost(self) -> list[Name]:
        """Names of the servers that refuse a connection; each is said once."""
        if time.monotonic() < self._due_s:
            return []
        gone = [name for name, address in self._servers.items() if refuses(address)]
        for name in gone:
            del self._servers[name]
        self._due_s = time.monotonic() + _PERIOD_S
        return gone


def refuses(address: Address) -> bool:
    """Whether nobody listens at `address`; a slow network is not yet a death."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False
