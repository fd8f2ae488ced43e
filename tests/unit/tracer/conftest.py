from collections.abc import Iterator
from pathlib import Path

import pytest

from magneton_dist.tracer.spool import Spool


class Rows(Spool):
    """A spool whose rows are read from memory; its thread never writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), 1e9)
        self._closed.set()
        self._thread.join()

    def of(self, kind: str) -> list[list[object]]:
        """Fields of the rows of a kind, so far."""
        return [list(row[1:]) for row in self._rows if row[0] == kind]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    spool = Rows(tmp_path)
    yield spool
    spool.darken()
