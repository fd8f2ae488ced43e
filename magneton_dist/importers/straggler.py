"""Per-operation timelines of pipeline-parallel jobs, as ByteDance's StragglerAnalysis publishes them.

A file is an array of Chrome events, all workers together: `pid` is the data-parallel rank, the thread's name holds
the pipeline stage, `args` the step and the number of the micro-batch or message.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.importers.bytestream import DO, pieces
from magneton_dist.records.operations import OPERATIONS

MOST_BYTES = 1 << 30
_STAGE = re.compile(r"PP rank (\d+)")
# What each communication spans besides the step: the columns that its members share.
_MESSAGES = {"forward-send": 0, "forward-recv": -1, "backward-send": 0, "backward-recv": 1}
_SHARED = {
    "params-all-gather": ("stage",), "grads-reduce-scatter": ("stage",), "embedding-grads-all-reduce": ("dp",),
    "optimizer-clip-main-grad": (),
}  # fmt: skip


class _Args(msgspec.Struct, gc=False):
    name: str | None = None
    step: int | None = None
    mb_id: int | None = None
    seq_id: int | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int = -1
    tid: int = -1
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = msgspec.field(default_factory=_Args)


def is_timeline(path: Path) -> bool:
    """Whether the file begins like one of these timelines."""
    try:
        start = next(pieces(path), b"")[:65536]
    except RecordError:
        return False
    return start.lstrip().startswith(b"[") and b'"mb_id"' in start and b'"model_chunk"' in start


def read_timeline(path: Path) -> tuple[pl.DataFrame, int]:
    """The operations of all workers (schema `OPERATIONS`), and how many with negative durations were dropped.

    Raises:
        RecordError: it is damaged, or no such timeline.
    """
    data = bytearray()
    for piece in pieces(path):
        data += piece
        if len(data) > MOST_BYTES:
            raise RecordError(f"is longer than {MOST_BYTES >> 20} MiB", where=str(path), do="give fewer steps")
    try:
        events = msgspec.json.decode(data, type=list[_Event])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"is no timeline of operations: {error}", where=str(path), do=DO) from error
    stages = {}
    for event in events:
        if event.ph == "M" and event.args.name and (found := _STAGE.search(event.args.name)):
            stages[event.pid, event.tid] = int(found[1])
    timed = [e for e in events if e.ph == "X" and e.args.step is not None]
    known = [e for e in timed if e.dur >= 0 and (e.pid, e.tid) in stages]
    if not known:
        raise RecordError("holds no operation of a known worker", where=str(path), do=DO)
    number = [e.args.mb_id if e.name.endswith("-compute") else e.args.seq_id for e in known]
    rows = {
        "step": [e.args.step for e in known], "dp": [e.pid for e in known],
        "stage": [stages[e.pid, e.tid] for e in known], "op": [e.name for e in known], "number": number,
        "start_ns": [round(e.ts * 1000) for e in known], "end_ns": [round((e.ts + e.dur) * 1000) for e in known],
    }  # fmt: skip
    frame = pl.DataFrame(rows).with_columns(_call().alias("call"), pl.col("op").is_in(list(_MESSAGES)).alias("message"))
    return frame.select(*OPERATIONS.schema).cast(pl.Schema(OPERATIONS.schema)), len(timed) - len(known)


def _call() -> pl.Expr:
    """A name for each communication that its members share; null for what a worker does alone."""
    call: pl.Expr = pl.lit(None, pl.String)
    for op, shift in _MESSAGES.items():
        name = pl.format("{} {} {} {}", pl.lit(op.partition("-")[0]), "dp", pl.col("stage") + shift, "number")
        call = pl.when(pl.col("op") == op).then(name).otherwise(call)
    for op, shared in _SHARED.items():
        name = pl.concat_str(pl.lit(op), *shared, separator=" ")
        call = pl.when(pl.col("op") == op).then(name).otherwise(call)
    return call
