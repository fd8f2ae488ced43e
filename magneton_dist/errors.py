"""Every error this package raises on purpose.

    MagnetonError            exit code 1
    ├── InputError           2: what the user gave is wrong
    │   ├── ConfigError         a configuration key (file, line, key)
    │   └── RecordError         a record or trace that cannot be read
    ├── ClusterError         1: Ray, placement, processes
    ├── MeterError           1: a meter that cannot be read
    └── SyncError            1: a synchronisation protocol that cannot be equal to Join

Each says what happened, where, and what to do about it.
"""

from __future__ import annotations

from typing import Optional


class MagnetonError(Exception):
    """Base of the tree.

    Args:
        what: what happened, one line.
        where: file, line, key, rank or device it happened at.
        do: what the reader can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: Optional[str] = None, do: Optional[str] = None) -> None:
        self.what = what
        self.where = where
        self.do = do
        super().__init__(what)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line} ({self.do})" if self.do else line

    def __reduce__(self) -> tuple[object, ...]:
        # Ray carries errors between processes; keyword arguments must survive the trip.
        return (_rebuild, (type(self), self.what, self.where, self.do))


def _rebuild(kind: type[MagnetonError], what: str, where: Optional[str], do: Optional[str]) -> MagnetonError:
    return kind(what, where=where, do=do)


class InputError(MagnetonError):
    """What the user gave (arguments, files, folders) is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration file or key is wrong; `where` is ``file:line: key``."""


class RecordError(InputError):
    """A record or trace cannot be read, is truncated, or is of a newer schema."""


class ClusterError(MagnetonError):
    """Ray, placement or process supervision failed."""


class MeterError(MagnetonError):
    """A meter cannot be opened or read."""


class SyncError(MagnetonError):
    """A synchronisation protocol refuses a model it could not treat exactly like Join."""
