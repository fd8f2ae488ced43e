"""One traced step of one rank as a graph to match: from the tables of a record to flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import numpy as np
import polars as pl

from magneton_dist.errors import RecordError
from magneton_dist.matching.arrays import Bools, Ints, Ragged
from magneton_dist.matching.fingerprints import Fingerprints, ragged
from magneton_dist.matching.graph import COMPLEX, FLOAT, INTEGER, UNKNOWN, MatchGraph

PHASES = ("forward", "backward", "optimizer", "other")
EPS, EPS_LOW_PRECISION = 1e-3, 1e-2
LOW_PRECISION = ("bfloat16", "float16", "float8")

TINY = 8  # elements; fewer say too little
CONSTANT = 1e-9  # all elements are equal where the mean of |x| is this close to its largest possible value

# Operators that add up: what they leave so far below their inputs is what rounding left of zero.
NOISE = 1e-3
SUMS = frozenset({"sum", "add", "add_", "sub", "sub_", "rsub", "cumsum", "reduce_sum", "Sum"})
NOISE_OF_PRODUCT = 1e-5
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution", "dot_general", "MatMul"})

# Place of the input of which only the shape matters: the result says nothing about what led to it.
SHAPE_ONLY = {
    **dict.fromkeys(
        ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"), 0
    ),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"), 0),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), 1),
}

UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"}
)


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A graph, and what its operators and values are called in the record."""

    graph: MatchGraph
    step: int
    ops: pl.DataFrame  # OPS rows, in the graph's order
    values: pl.DataFrame  # VALUES rows, in the graph's order; a result that is its own input comes twice
    low_precision: bool  # 16 or 8 bits take part


def tolerance(a: StepGraph, b: StepGraph) -> float:
    """Relative tolerance of features: 1e-3 for fp32 and TF32, 1e-2 where 16 or 8 bits take part on a side."""
    return EPS_LOW_PRECISION if a.low_precision or b.low_precision else EPS


def traced_steps(ops: pl.DataFrame) -> list[int]:
    """Steps that left operators, in order."""
    steps: list[int] = ops["step"].unique().sort().to_list()
    return steps


def step_graph(
    ops: pl.DataFrame, values: pl.DataFrame, fingerprints: pl.DataFrame, step: int | None = None
) -> StepGraph:
    """The graph of one traced step.

    Args:
        ops, values, fingerprints: tables of one rank.
        step: which step; the first traced one by default.

    Raises:
        RecordError: no operator of that step is there.
    """
    if step is None:
        step = next(iter(traced_steps(ops)), -1)
    ops = ops.filter(pl.col("step") == step).sort("op_id")
    if not ops.height:
        raise RecordError("no operators of a traced step", do="set capture.graph_steps to 1 or more")
    inputs, outputs = ragged(ops["inputs"]), ragged(ops["outputs"])
    ids = np.unique(np.concatenate([inputs.flat, outputs.flat]))
    inputs = Ragged(inputs.start, np.searchsorted(ids, inputs.flat))
    outputs, repeated = _ssa(inputs, Ragged(outputs.start, np.searchsorted(ids, outputs.flat)), len(ids))
    names = [_short(name) for name in ops["name"]]
    inputs = _without_shapes(names, inputs)
    named = pl.DataFrame({"value_id": np.concatenate([ids, ids[repeated]])})
    values = named.join(values, on="value_id", how="left", maintain_order="left")
    graph = _match_graph(names, ops["phase"], values, fingerprints, inputs, outputs)
    low = values["dtype"].fill_null("").str.contains("|".join(LOW_PRECISION)).to_numpy()
    return StepGraph(graph, step, ops, values, bool((low & (graph.numel >= TINY)).any()))


def _ssa(inputs: Ragged, outputs: Ragged, n_values: int) -> tuple[Ragged, Ints]:
    """One producer per value, before all readers.

    An operator that returns what was there before (a detach of a tensor, a view of it in its first shape)
    makes a value of its own, which nobody reads, so that it is an operator with a result.

    Returns:
        the outputs, and the values that come a second time, numbered from `n_values` on.
    """
    n_ops = len(inputs.start) - 1
    first_read = np.full(n_values, n_ops)
    np.minimum.at(first_read, inputs.flat, inputs.rows)
    writer, written = outputs.rows, outputs.flat
    returned = np.isin(writer * n_values + written, inputs.rows * n_values + inputs.flat)
    made = np.nonzero(~returned & (first_read[written] > writer))[0]
    made = made[np.unique(written[made], return_index=True)[1]]  # the first to write it
    idle = ~np.isin(writer, writer[made])
    repeating, at = np.unique(writer[idle], return_index=True)
    repeated = written[idle][at]
    op = np.concatenate([writer[made], repeating])
    value = np.concatenate([written[made], n_values + np.arange(len(repeated))])
    order = np.argsort(op, kind="stable")
    return Ragged(np.searchsorted(op[order], np.arange(n_ops + 1)), value[order]), repeated


def _without_shapes(names: list[str], inputs: Ragged) -> Ragged:
    """`inputs` less those of which only the shape is read."""
    drop = [
        int(inputs.start[op]) + SHAPE_ONLY[name]
        for op, name in enumerate(names)
        if name in SHAPE_ONLY and inputs.start[op] + SHAPE_ONLY[name] < inputs.start[op + 1]
    ]
    gone = np.zeros(len(inputs.flat) + 1, np.int64)
    gone[np.array(drop, np.int64) + 1] = 1
    return Ragged(inputs.start - np.cumsum(gone)[inputs.start], np.delete(inputs.flat, drop))


def _match_graph(
    names: list[str],
    phase: pl.Series,
    values: pl.DataFrame,
    table: pl.DataFrame,
    inputs: Ragged,
    outputs: Ragged,
) -> MatchGraph:
    fingerprints = Fingerprints(table)
    row = _rows_of(table, values)
    # what lies in new memory is nothing that anybody computed, though it may be what another run left there
    known = (row >= 0) & ~_uninitialised(names, outputs, len(row))
    if not table.height:
        features, checksum = np.zeros((len(row), 5)), np.zeros(len(row), np.int64)
    else:
        features = np.where(known[:, None], fingerprints.features[row], 0.0)
        checksum = np.where(known, fingerprints.checksum[row], np.arange(len(row)))
    numel = np.array([prod(shape) if shape is not None else 0 for shape in values["shape"].to_list()], np.int64)
    kind = np.where(known, [_kind(dtype) for dtype in values["dtype"]], UNKNOWN)
    constant = (features[:, 1] > 1 - CONSTANT) & (np.abs(features[:, 3]) > 1 - CONSTANT)
    anchor = known & (numel >= TINY) & (features[:, 0] > 0) & ~constant
    anchor &= ~_noise(names, inputs, outputs, features[:, 0], numel)
    phases = [PHASES.index(name) if name in PHASES else len(PHASES) for name in phase]
    slots = [_slot(role, slot) for role, slot in values.select("role", "slot").iter_rows()]
    return MatchGraph(
        names=names,
        phases=np.array(phases, np.int64),
        inputs=inputs,
        outputs=outputs,
        kind=kind.astype(np.int64),
        numel=numel,
        features=features,
        checksum=checksum,
        anchor=anchor,
        slot=np.array(slots, np.int64),
        fingerprints=fingerprints,
        fingerprint=row,
    )


def _short(name: str) -> str:
    """``addmm`` of ``aten.addmm.default``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


def _rows_of(table: pl.DataFrame, values: pl.DataFrame) -> Ints:
    """(values,) row of each value's fingerprint, -1 without one."""
    rows = table.select(pl.row_index("row"), value_id="values").explode("value_id", empty_as_null=True)
    rows = rows.drop_nulls().unique("value_id", keep="last")
    joined = values.select("value_id").join(rows, on="value_id", how="left", maintain_order="left")
    return joined["row"].cast(pl.Int64).fill_null(-1).to_numpy()


def _kind(dtype: str | None) -> int:
    if dtype is None or dtype.startswith(("int", "uint", "bool")):
        return INTEGER
    return COMPLEX if dtype.startswith("complex") else FLOAT


def _slot(role: str | None, slot: str | None) -> int:
    """The same number for the same role and name in any graph."""
    if slot is None:
        return -1
    return int.from_bytes(blake2b(f"{role}/{slot}".encode(), digest_size=8).digest(), "big") >> 2


def _uninitialised(names: list[str], outputs: Ragged, n_values: int) -> Bools:
    """(values,) in memory that nobody has written yet."""
    found = np.zeros(n_values, bool)
    for op, name in enumerate(names):
        if name in UNINITIALISED:
            found[outputs[op]] = True
    return found


def _noise(names: list[str], inputs: Ragged, outputs: Ragged, norm: np.ndarray, numel: Ints) -> Bools:
    """(values,) analytically zero: their norm is nothing but the rounding errors of large numbers added up.

    The gradient of a key's bias is the usual one.
    """
    noise = np.zeros(len(norm), bool)
    for op, name in enumerate(names):
        if name in SUMS:
            noise[outputs[op]] = norm[outputs[op]] < NOISE * norm[inputs[op]].max(initial=0.0)
        elif name in PRODUCTS:
            factors = norm[inputs[op]][-2:]
            noise[outputs[op]] = norm[outputs[op]] < NOISE_OF_PRODUCT * factors.prod()
    return noise
