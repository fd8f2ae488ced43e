"""Readings of one device during one run, saved as they come: a killed actor loses half a second of them."""

from __future__ import annotations

import errno
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from magneton_dist.records.manifest import MeterUsed
from magneton_dist.records.monitors import MONITORS
from magneton_dist.records.schema import COUNTERS, POWER, Table

if TYPE_CHECKING:
    from magneton_dist.cluster.analysis import Sampler

_SEEN = "seen beside the power"


class Readings:
    """A sampler at work, and the files that its tables are appended to.

    Args:
        spool: the node's spool folder.
        slot: number of the rank actor on its node.
        device: GPU UUID or "cpu".
        sampler: of the device; started here.
        reason: why this meter.
        resume: append to the files of an actor that was killed, instead of beginning anew.

    Attributes:
        used: the meter.
        joules: since the meter was opened, None without a counter.
    """

    def __init__(
        self, spool: Path, slot: int, device: str, sampler: Sampler, reason: str, *, resume: bool = False
    ) -> None:
        self.device = device
        meter = sampler.meter
        monitors = f"none: {sampler.unmonitored}" if sampler.unmonitored else _SEEN
        self.used = MeterUsed(meter.name, meter.provenance, meter.source, meter.device, reason, monitors)
        self.sampler = sampler
        self.joules: float | None = None
        self._spool, self._slot = spool, slot
        self._paths = _paths(spool, slot)
        self._saved = [0, 0, 0]
        self._open = True
        # an energy counter starts at 0 for each actor: what a killed one read cannot be continued
        self._broken = resume and len(_whole_lines(self._paths[1])) > 0
        for path in self._paths:
            path.write_bytes(_whole_lines(path) if resume else b"")
        (spool / f"meter-{slot}.json").write_bytes(msgspec.json.encode(self.used))
        sampler.start()

    def save(self) -> None:
        """Append what was read since the call before."""
        power, counters = self.sampler.tables((self._saved[0], self._saved[1]))
        self._append([power, counters, self.sampler.monitors(self._saved[2])])

    def stop(self) -> None:
        """Take the last reading and give the meter back; harmless when repeated."""
        if self._open:
            self._open = False
            self.sampler.stop()
            self.save()
            self.sampler.meter.close()

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Power and counters of the whole run, also those that a killed actor saved."""
        power, counters = saved(self._spool, self._slot)
        return power, COUNTERS.empty() if self._broken else counters

    def monitors(self) -> pl.DataFrame:
        """What performance monitors said in the whole run, likewise."""
        return saved_monitors(self._spool, self._slot)

    def faults(self) -> list[str]:
        """What went wrong with the meter, in words."""
        broken = ["the energy counter was interrupted with its actor and is left out"] if self._broken else []
        ended = self.sampler.unmonitored if self.used.monitors == _SEEN and self.sampler.unmonitored else ""
        return [*self.sampler.faults, *broken, *([f"performance monitors: {ended}"] if ended else [])]

    def _append(self, tables: list[pl.DataFrame]) -> None:
        for index, (path, frame) in enumerate(zip(self._paths, tables, strict=True)):
            if frame.height:
                lines = BytesIO()
                frame.write_ndjson(lines)
                with path.open("ab", buffering=0) as file:
                    end = file.tell()
                    if file.write(lines.getbuffer()) < lines.tell():
                        file.truncate(end)  # what is appended next must not follow half a line
                        raise OSError(errno.ENOSPC, "no room for the readings", str(path))
                self._saved[index] += frame.height
        if tables[1].height:
            self.joules = tables[1]["joules"][-1]


def saved(spool: Path, slot: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Power and counters that the actor of `slot` left in `spool`; a line torn by a kill is left out."""
    power, counters, _ = _paths(spool, slot)
    return _load(power, POWER).sort("t_ns"), _load(counters, COUNTERS).sort("t_ns")


def saved_monitors(spool: Path, slot: int) -> pl.DataFrame:
    """What performance monitors said, as the actor of `slot` left it (`records.monitors.MONITORS`)."""
    return _load(_paths(spool, slot)[2], MONITORS).sort("start_ns")


def saved_meter(spool: Path, slot: int) -> MeterUsed | None:
    """The meter that the actor of `slot` used, None when it had not got that far."""
    path = spool / f"meter-{slot}.json"
    return msgspec.json.decode(path.read_bytes(), type=MeterUsed) if path.exists() else None


def _paths(spool: Path, slot: int) -> tuple[Path, Path, Path]:
    return spool / f"power-{slot}.jsonl", spool / f"counters-{slot}.jsonl", spool / f"monitors-{slot}.jsonl"


def _load(path: Path, table: Table) -> pl.DataFrame:
    whole = _whole_lines(path)
    if not whole:
        return table.empty()
    return pl.read_ndjson(BytesIO(whole), schema=table.schema)


def _whole_lines(path: Path) -> bytes:
    """What `path` holds, up to its last complete line."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]
