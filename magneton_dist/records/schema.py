"""Tables of a record: column names, types and units.

A record is the folder ``<audit>/<variant>/<repeat>/`` with ``manifest.json`` and
``ranks/NNNNN/<table>.parquet``. Times are ns on the rank's host monotonic clock; the manifest holds each
host's offset to the coordinator's clock and its error. Null means unknown; it is never written as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from magneton_dist.errors import RecordError

SCHEMA_VERSION = 1

I64, I32, F64, STR, BOOL = pl.Int64(), pl.Int32(), pl.Float64(), pl.String(), pl.Boolean()
IDS = pl.List(pl.Int64())
FRAME = pl.Struct({"file": STR, "line": I32, "function": STR})


@dataclass(frozen=True)
class Column:
    """One column: its type, its unit (empty when it has none) and what it says.

    `later`: older records lack it; they read as null.
    """

    dtype: pl.DataType
    unit: str
    doc: str
    later: bool = False


@dataclass(frozen=True)
class Table:
    """One table of a rank's record."""

    name: str
    row: str
    columns: dict[str, Column]

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The polars schema, in column order."""
        return {name: column.dtype for name, column in self.columns.items()}

    def empty(self) -> pl.DataFrame:
        """A table of this schema without rows."""
        return pl.DataFrame(schema=self.schema)

    def validate(self, frame: pl.DataFrame, where: str) -> pl.DataFrame:
        """Return `frame` with all columns, or raise `RecordError` when its columns are not this table's."""
        lacking = [name for name, c in self.columns.items() if c.later and name not in frame.columns]
        if lacking and set(frame.columns) <= set(self.columns):
            nulls = [pl.lit(None, self.columns[name].dtype).alias(name) for name in lacking]
            names = [name for name in self.columns if name in frame.columns or name in lacking]
            frame = frame.with_columns(nulls).select(names)
        if dict(frame.schema) != self.schema:
            found = {n: str(t) for n, t in frame.schema.items()}
            wrong = sorted(
                n for n in self.schema.keys() | found.keys() if found.get(n) != str(self.schema.get(n))
            )
            raise RecordError(
                f"table {self.name!r} has other columns than schema version {SCHEMA_VERSION}: {', '.join(wrong)}",
                where=where,
                do="read it with the magneton-dist version that wrote it",
            )
        return frame


STEPS = Table("steps", "one step of one rank", {
    "step": Column(I64, "", "0-based step of this rank"),
    "start_ns": Column(I64, "ns", "start"),
    "end_ns": Column(I64, "ns", "end"),
    "kind": Column(STR, "", "warm-up, measured, kernels or traced"),
    "units": Column(F64, "", "tokens or samples worked on, null when the script does not say"),
    "unit": Column(STR, "", "what `units` counts: tokens or samples"),
})

STAMPS = Table("stamps", "one reading of the main thread's clocks (at issues, completions and step edges)", {
    "t_ns": Column(I64, "ns", "when"),
    "cpu_ns": Column(I64, "ns", "CPU time of the main thread so far"),
    "delay_ns": Column(I64, "ns", "time the main thread was runnable but waited for a core, so far"),
})

COLLECTIVES = Table("collectives", "one call of a collective or point-to-point operation on one rank", {
    "call_id": Column(I64, "", "order of issue on this rank"),
    "group": Column(STR, "", "process group name"),
    "group_size": Column(I32, "", "ranks in the group"),
    "group_rank": Column(I32, "", "this rank within the group"),
    "seq": Column(I64, "", "sequence number in the group, null when it cannot be trusted"),
    "op": Column(STR, "", "c10d operator: allreduce_, broadcast_, ..."),
    "origin": Column(STR, "", "user, ddp, ddp_buffers, fsdp, join_control, join_shadow, join_final, sync_control"),
    "bytes": Column(I64, "bytes", "payload on this rank"),
    "dtype": Column(STR, "", "payload type"),
    "zero_payload": Column(BOOL, "", "payload was all zeros; null when not looked at"),
    "root": Column(I32, "", "root, source or destination rank in the group, null for symmetric operations"),
    "step": Column(I64, "", "step it was issued in"),
    "issue_ns": Column(I64, "ns", "the host called it"),
    "start_ns": Column(I64, "ns", "start on the device (GPU) or issue (CPU)"),
    "end_ns": Column(I64, "ns", "completion; null while still in flight when the record ends"),
    "stack_id": Column(I64, "", "stack of the call"),
})

OPS = Table("ops", "one operator of a traced step", {
    "op_id": Column(I64, "", "order of execution"),
    "step": Column(I64, "", "step"),
    "name": Column(STR, "", "aten.addmm.default, c10d.allreduce_.default, ..."),
    "phase": Column(STR, "", "forward, backward, optimizer or other"),
    "inputs": Column(IDS, "", "value ids read, in argument order"),
    "outputs": Column(IDS, "", "value ids written"),
    "arguments": Column(STR, "", "JSON array of arguments; tensors stand as {\"v\": value id}"),
    "stack_id": Column(I64, "", "stack"),
    "start_ns": Column(I64, "ns", "host start; null where a graph ran as a whole"),
    "end_ns": Column(I64, "ns", "host end"),
})

VALUES = Table("values", "one version of one tensor: a storage seen through one layout after one write", {
    "value_id": Column(I64, "", "id"),
    "storage": Column(I64, "", "storage id (views share it)"),
    "version": Column(I64, "", "writes to the storage so far in this step"),
    "offset": Column(I64, "elements", "storage offset"),
    "shape": Column(IDS, "elements", "sizes"),
    "stride": Column(IDS, "elements", "strides"),
    "dtype": Column(STR, "", "torch dtype without the prefix"),
    "device": Column(STR, "", "cpu, cuda:0, ..."),
    "bytes": Column(I64, "bytes", "numel * element size"),
    "role": Column(STR, "", "parameter, buffer, gradient, optimizer_state, input or activation"),
    "slot": Column(STR, "", "name of the parameter or buffer this is, or is the gradient or state of; else null"),
    "kept": Column(BOOL, "", "its storage was still held when the step had been recorded; null unknown", later=True),
})

FINGERPRINTS = Table("fingerprints", "what values of a traced step hold, in one shape (the order of modes aside)", {
    "values": Column(IDS, "", "value ids that hold it"),
    "exact": Column(STR, "", "order-independent checksum of the bits, hexadecimal; equal bits give equal text"),
    "elements": Column(I64, "", "real numbers in it: a complex one is two"),
    "sum": Column(F64, "", "sum, in float64; elements that are not finite or >= 1e30 count as 0 in all sums"),
    "l1": Column(F64, "", "sum of absolute values"),
    "l2": Column(F64, "", "Euclidean norm"),
    "l4": Column(F64, "", "fourth root of the sum of fourth powers"),
    "excluded": Column(F64, "", "share of elements that are not finite or >= 1e30"),
    "shape": Column(IDS, "elements", "lengths of the modes longer than one, outermost in memory first"),
    "unfoldings": Column(IDS, "", "smaller side of each unfolding that was looked at"),
    "s4": Column(pl.List(F64), "", "||T T'||_F / ||T||_F^2 of each of them"),
    "modes": Column(IDS, "elements", "lengths of the modes with a profile"),
    "profiles": Column(
        pl.List(F64), "",
        "10 numbers for each of them: norms of the sums along it of x/l2 and of x^2/l4^2, then the sums of both "
        "under 4 fixed signs (element i counts negative in sum k when bit k of splitmix64(i) is set)",
    ),
    "singular": Column(pl.List(F64), "", "singular values over l2 of each unfolding, if they were asked for"),
})

ACTIVITIES = Table("activities", "one interval on a device", {
    "device": Column(STR, "", "device UUID, or cpu"),
    "stream": Column(I64, "", "stream id"),
    "kind": Column(STR, "", "kernel, memcpy, memset, collective or cpu"),
    "name": Column(STR, "", "kernel name"),
    "start_ns": Column(I64, "ns", "start"),
    "end_ns": Column(I64, "ns", "end"),
    "op_id": Column(I64, "", "operator that launched it, null when unknown"),
    "graph_node": Column(I64, "", "node of the CUDA graph that it ran as; null outside of graphs", later=True),
    "sm_share": Column(F64, "", "part of the SMs that its blocks can hold at once, 0 to 1; null unknown", later=True),
})

POWER = Table("power", "one power reading: mean watts since the reading before it", {
    "device": Column(STR, "", "device UUID or package name"),
    "t_ns": Column(I64, "ns", "end of the interval that the reading speaks for"),
    "watts": Column(F64, "W", "power; null when the reading failed"),
    "sensor": Column(STR, "", "nvml-instant, nvml-average, rapl, modelled, ..."),
    "window_ns": Column(I64, "ns", "averaging window of the sensor, or the interval's length when modelled"),
})

COUNTERS = Table("counters", "one reading of an energy counter", {
    "device": Column(STR, "", "device UUID or package name"),
    "t_ns": Column(I64, "ns", "when"),
    "joules": Column(F64, "J", "energy since the first reading, wrap-around undone"),
    "sensor": Column(STR, "", "nvml-energy, rapl, ..."),
})

STACKS = Table("stacks", "one call stack", {
    "stack_id": Column(I64, "", "id"),
    "frames": Column(pl.List(FRAME), "", "frames, innermost first"),
})

KNOBS = Table("knobs", "one setting of the process", {
    "name": Column(STR, "", "torch.backends.*, env.*, version.*, ddp.*, ..."),
    "value": Column(STR, "", "its value as text"),
})

PARAMETERS = Table("parameters", "digest of one parameter at the end of the run", {
    "name": Column(STR, "", "name in the module, or group.index in the optimizer"),
    "shape": Column(IDS, "elements", "sizes"),
    "dtype": Column(STR, "", "torch dtype without the prefix"),
    "sum": Column(F64, "", "sum, in float64"),
    "l1": Column(F64, "", "sum of absolute values, in float64"),
    "l2": Column(F64, "", "Euclidean norm, in float64"),
    "exact": Column(STR, "", "order-independent checksum of the bits, hexadecimal; equal bits give equal text"),
    "projections": Column(
        pl.List(F64), "",
        "8 sums, in float64, under fixed signs: element i (logical order) counts negative in sum k when bit k of "
        "splitmix64(i) is set; the mean square difference of two parameters' sums estimates their squared distance",
    ),
})

MARKS = Table("marks", "one moment in the life of a rank", {
    "name": Column(
        STR, "",
        "python_start, process_group, join_enter, join_exit, join_done, exit, stopped, ...; kernels: a captured "
        "window ends, detail {start_ns, activities: how many began in it}; kernel_trace: its profiler's file",
    ),
    "t_ns": Column(I64, "ns", "when"),
    "detail": Column(STR, "", "JSON"),
})

FAULTS = Table("faults", "one thing the tracer could not do, or left out on purpose", {
    "where": Column(STR, "", "part of the tracer"),
    "message": Column(STR, "", "what, in one line"),
})

COLLECTIVE_SUMS = Table("collective_sums", "exact sums of the collectives that the spool's cap left out", {
    "group": Column(STR, "", "process group name"),
    "op": Column(STR, "", "c10d operator"),
    "origin": Column(STR, "", "origin"),
    "stack_id": Column(I64, "", "stack"),
    "count": Column(I64, "", "calls"),
    "bytes": Column(I64, "bytes", "payload"),
    "duration_ns": Column(I64, "ns", "summed duration"),
})

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        STEPS, STAMPS, COLLECTIVES, COLLECTIVE_SUMS, OPS, VALUES, FINGERPRINTS, ACTIVITIES, POWER, COUNTERS,
        STACKS, KNOBS, PARAMETERS, MARKS, FAULTS,
    )
}
