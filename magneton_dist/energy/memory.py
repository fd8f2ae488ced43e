"""Which operators made what is alive when a traced step holds most.

A storage is alive from the operator that makes it to the last that uses it, or to the end of the step when it
is a parameter, buffer, gradient or optimizer state. Storages that the step was given are alive throughout. The
sizes are those of the storages as far as the operators have seen them; caching by the allocator is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.fingerprints import ragged
from magneton_dist.matching.recorded import StepGraph

_KEPT = ("parameter", "buffer", "gradient", "optimizer_state")


@dataclass(frozen=True, eq=False)
class StepMemory:
    """Bytes alive at the peak of a traced step.

    Attributes:
        peak_bytes: all of them.
        given_bytes: of them, what the step was given.
        made_bytes: (operators,) of them, what each operator made; with `given_bytes` they add up to the peak.
    """

    peak_bytes: int
    given_bytes: int
    made_bytes: Ints


def step_memory(step: StepGraph) -> StepMemory:
    """Bytes alive at the peak of `step`, by the operator that made them."""
    graph, values = step.graph, step.values
    n_ops = graph.n_ops
    storage, first_row = np.unique(values["storage"].fill_null(-1).to_numpy(), return_inverse=True)
    n = len(storage)
    size = np.zeros(n, np.int64)
    np.maximum.at(size, first_row, _extent_bytes(values))
    first_read, first_made, last = np.full(n, n_ops), np.full(n, n_ops), np.zeros(n, np.int64)
    read, reader = first_row[graph.inputs.flat], graph.inputs.rows
    made, maker = first_row[graph.outputs.flat], graph.outputs.rows
    np.minimum.at(first_read, read, reader)
    np.maximum.at(last, read, reader)
    np.maximum.at(last, made, maker)
    fresh = (values["version"] == 0).fill_null(True).to_numpy()[graph.outputs.flat]
    np.minimum.at(first_made, made[fresh], maker[fresh])
    kept = np.zeros(n, bool)
    kept[first_row[values["role"].is_in(_KEPT).fill_null(False).to_numpy()]] = True
    given = first_read <= first_made
    start = np.where(given, 0, first_made)
    end = np.where(given | kept, n_ops, last + 1)

    change = np.zeros(n_ops + 1, np.int64)
    np.add.at(change, start, size)
    np.subtract.at(change, end, size)
    alive = np.cumsum(change)[:n_ops]
    peak = int(np.argmax(alive)) if n_ops else 0
    held = (start <= peak) & (peak < end)
    made_bytes = np.zeros(n_ops, np.int64)
    np.add.at(made_bytes, first_made[held & ~given], size[held & ~given])
    return StepMemory(int(size[held].sum()), int(size[held & given].sum()), made_bytes)


def _extent_bytes(values: pl.DataFrame) -> Ints:
    """(values,) bytes from the start of the storage to the end of what each value shows of it."""
    shape, stride = ragged(values["shape"].fill_null([])), ragged(values["stride"].fill_null([]))
    rows, n = shape.rows, values.height
    numel = np.ones(n, np.int64)
    np.multiply.at(numel, rows, shape.flat)
    size = values["bytes"].fill_null(0).to_numpy()
    itemsize = np.divide(size, numel, out=np.zeros(n), where=numel > 0)
    if len(shape.flat) != len(stride.flat):  # some recorders have no strides: dense
        return size
    reach = np.bincount(rows, weights=(shape.flat - 1) * stride.flat, minlength=n)
    extent = (values["offset"].fill_null(0).to_numpy() + reach + 1) * itemsize
    return np.where(numel > 0, np.rint(extent), 0).astype(np.int64)
