"""What replay found, beside the run that it belongs to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl

from magneton_dist.energy.attribution import Floats
from magneton_dist.energy.replay.signature import signatures
from magneton_dist.errors import InputError, RecordError
from magneton_dist.records.beside import read_beside, write_beside
from magneton_dist.records.schema import BOOL, F64, I64, STR, Column, Table

FILE = "replayed.parquet"

REPLAYED = Table("replayed", "calls of an operator or collective that are alike, replayed", {
    "key": Column(STR, "", "signature of the calls: see energy.replay.plan"),
    "name": Column(STR, "", "operator, or c10d's name of a collective"),
    "kind": Column(STR, "", "class of operator, or collective"),
    "tensors": Column(STR, "", "type and shape of what it reads; of a collective: payload and ranks"),
    "calls": Column(F64, "", "per step of a rank"),
    "seconds": Column(F64, "s", "of one call"),
    "joules": Column(F64, "J", "of one call, gross; of a collective: all its ranks together; null when unknown"),
    "low_j": Column(F64, "J", "lower end of its 95 % interval; modelled: at the lowest watts"),
    "high_j": Column(F64, "J", "upper end"),
    "net_j": Column(F64, "J", "without what the device draws when it holds a context and idles"),
    "energy_kind": Column(STR, "", "replayed, modelled or unmeasured"),
    "conclusive": Column(BOOL, "", "the interval got as narrow as asked for"),
    "windows": Column(I64, "", "that count"),
    "temperature_c": Column(F64, "degrees Celsius", "of the hottest device, mean over the windows; null: not told"),
    "inputs": Column(STR, "", "what it worked on: random, recorded, or partly recorded"),
    "how": Column(STR, "", "loop, or CUDA graph"),
    "meter": Column(STR, "", "where the watts come from"),
    "device": Column(STR, "", "on which it was replayed"),
    "notes": Column(STR, "", "windows that do not count, fallbacks; why it could not be replayed"),
})


def read_replayed(run: Path) -> pl.DataFrame:
    """Table `REPLAYED` of the run in folder `run`, without rows where nothing was replayed.

    Raises:
        RecordError: it is damaged.
    """
    return read_beside(run / FILE, REPLAYED, "delete it, and replay again")


def replayed_joules(ops: pl.DataFrame, values: pl.DataFrame, replayed: pl.DataFrame) -> Floats | None:
    """(operators,) joules of a call, gross, where replay measured and settled them, NaN elsewhere.

    Args:
        ops: operators of a traced step, `OPS`.
        values: the rank's `VALUES`.
        replayed: `REPLAYED` of the run.

    Returns:
        None where none of the operators was replayed.
    """
    settled = replayed.filter((pl.col("energy_kind") == "replayed") & pl.col("conclusive")).select("key", "joules")
    if settled.is_empty() or ops.is_empty():
        return None
    keyed = pl.DataFrame({"key": signatures(ops, values)})
    joules = keyed.join(settled, on="key", how="left", maintain_order="left")["joules"]
    return None if joules.null_count() == len(joules) else joules.fill_null(float("nan")).to_numpy()


@contextmanager
def one_at_a_time(runs: Iterable[Path]) -> Iterator[list[str]]:
    """Hold the runs in these folders, which other replays may not work on meanwhile; yields notes.

    Raises:
        InputError: another replay works on one of them.
        RecordError: one cannot be written to, or what was replayed before is damaged.
    """
    notes = []
    with ExitStack() as held:
        for run in sorted(set(runs)):
            if not os.access(run, os.W_OK):  # rather than after the first replay
                raise RecordError("cannot be written to", where=str(run), do="copy the record")
            handle = os.open(run, os.O_RDONLY)
            held.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                do = "wait for it: each would measure the other's load, too"
                raise InputError("another replay works on it", where=str(run), do=do) from error
            except OSError as error:  # some network file systems
                notes.append(f"{run} cannot be locked ({error.strerror}): a second replay of it would not be noticed")
            read_replayed(run)
        yield notes


def write_replayed(run: Path, rows: pl.DataFrame) -> None:
    """Add `rows` to what was replayed for the run in folder `run`.

    A newer row replaces an older one, unless the older one was measured and the newer was not.

    Raises:
        RecordError: the folder cannot be written to.
    """
    known = read_replayed(run)
    measured = known.filter(pl.col("energy_kind") == "replayed")["key"]
    rows = rows.filter((pl.col("energy_kind") == "replayed") | ~pl.col("key").is_in(measured.implode()))
    kept = known.join(rows, on="key", how="anti")
    path = run / FILE
    try:
        write_beside(path, REPLAYED, pl.concat([kept, rows]))
    except OSError as error:
        raise RecordError(f"cannot be written: {error.strerror}", where=str(path), do="copy the record") from error
