"""The spool's rows: what the tracer writes and `records.assembly` reads.

A spool segment is a file of JSON lines; each line is an array whose first item is a row kind and whose
other items are that kind's fields, in this order. Times are ns on the host's monotonic clock.
Standard library only: this module is imported inside the user's job.
"""

from __future__ import annotations

FORMAT_VERSION = 1

# operators that mark the ends of an annotated stretch: see magneton_dist.tracer.annotate
ENTER, LEAVE = "magneton_dist.enter.default", "magneton_dist.leave.default"

# marks around each batch that a DataLoader gives; the latter with the kind of its iterator (`what`) and its stack
LOADER_ENTER, LOADER_EXIT = "loader_enter", "loader_exit"

# name, in a profiler's trace, of the time in which an operator of the graph was being called: with its `start_ns`
OPERATOR = "magneton_dist.operator#"

FIELDS: dict[str, tuple[str, ...]] = {
    # cumulative clocks of the main thread: its CPU time and the time it waited for a core
    "stamp": ("t_ns", "cpu_ns", "delay_ns"),
    # units: tokens or samples of this step on this rank, null when the script does not say
    "step": ("step", "start_ns", "end_ns", "kind", "units", "unit"),
    # one call of a c10d operator; end_ns null while in flight (a later row with the same call_id replaces it)
    "collective": (
        "call_id", "group", "group_size", "group_rank", "seq", "op", "origin", "bytes", "dtype",
        "zero_payload", "root", "step", "issue_ns", "start_ns", "end_ns", "stack_id",
    ),
    # exact sums of the rows that the cap left out, since the last such row of the same (group, op, origin, stack)
    "collective_sum": ("group", "op", "origin", "stack_id", "count", "bytes", "duration_ns"),
    "op": (
        "op_id", "step", "name", "phase", "inputs", "outputs", "arguments", "stack_id", "start_ns", "end_ns",
    ),
    "value": (
        "value_id", "storage", "version", "offset", "shape", "stride", "dtype", "device", "bytes", "role", "slot",
        "kept",
    ),
    # what the listed values hold, in one shape: see magneton_dist.tracer.invariants
    "fingerprint": (
        "values", "exact", "elements", "sum", "l1", "l2", "l4", "excluded", "shape", "unfoldings", "s4", "modes",
        "profiles", "singular",
    ),
    "activity": ("device", "stream", "kind", "name", "start_ns", "end_ns", "op_id", "graph_node", "sm_share"),
    "stack": ("stack_id", "frames"),  # frames innermost first: [[file, line, function], ...]
    "knob": ("name", "value"),
    # digest of one parameter at the end of the run, accumulated in float64
    "parameter": ("name", "shape", "dtype", "sum", "l1", "l2", "exact", "projections"),
    # moments: python_start, process_group, join_enter, join_exit, join_done, last_step, exit, stopped,
    # loader_enter, loader_exit, steps_by_call (the `step` rows that end before it are void)
    "mark": ("name", "t_ns", "detail"),
    # faults of the tracer itself and anything it left out on purpose
    "fault": ("where", "message"),
}
