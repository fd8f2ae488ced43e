"""Who made and who read the contents of storages in a traced step: flat arrays, operators in order of execution.

A *content* is one version of one storage: what all its views show between two writes. Views make no content,
an operator that writes in place makes a new one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.matching.arrays import Bools, Ints, Ragged
from magneton_dist.matching.fingerprints import ragged
from magneton_dist.matching.recorded import UNINITIALISED

OWNED = ("parameter", "buffer", "gradient", "optimizer_state")
RANDOM = re.compile(r"rand|dropout|bernoulli|normal_|uniform|multinomial|poisson|exponential|geometric|cauchy|rrelu")
COLLECTIVE = re.compile(r"^(c10d|_c10d_functional|symm_mem)\.")
COPIES = frozenset({"clone", "_to_copy", "contiguous"})
_PLAIN = re.compile(r"^(aten|prims)\.")
_STATEFUL = frozenset({"set_", "resize_", "record_stream", "_assert_async", "_local_scalar_dense"})
_INVISIBLE = re.compile(r"torchinductor|[/\\]_inductor[/\\]|[/\\]triton[/\\]")
_RECOMPUTING = re.compile(r"[/\\]torch[/\\]utils[/\\]checkpoint\.py:\d+ (recompute_fn|unpack_hook|backward)$")
_ENGINE = " _engine_run_backward"  # a gradient, not something that Python computes in the backward pass


@dataclass(frozen=True, eq=False)
class Flow:
    """A traced step.

    Contents are numbered arbitrarily; -1 stands for none, `n_ops` for "no operator does".

    Attributes:
        record: where it comes from.
        values: VALUES rows, by value id, one each.
        inputs, outputs: (operators) rows of `values` that each reads and makes.
        content: (values,) content that each value shows.
        storage: (contents,) storage code of each.
        maker: (contents,) operator that made it, -1 where the step was given it.
    """

    record: StepRecord
    values: pl.DataFrame
    inputs: Ragged
    outputs: Ragged
    content: Ints
    storage: Ints
    maker: Ints

    @classmethod
    def of(cls, record: StepRecord) -> Flow:
        """The flow of a traced step."""
        values = record.step.values.unique("value_id").sort("value_id")
        ids = values["value_id"].to_numpy()
        inputs, outputs = ragged(record.ops["inputs"]), ragged(record.ops["outputs"])
        inputs = Ragged(inputs.start, np.searchsorted(ids, inputs.flat))
        outputs = Ragged(outputs.start, np.searchsorted(ids, outputs.flat))
        places = values.select(pl.col("storage", "version").fill_null(-1)).to_numpy()
        known, content = np.unique(places, axis=0, return_inverse=True)
        content = content.reshape(-1).astype(np.int64)
        storage = np.unique(known[:, 0], return_inverse=True)[1].astype(np.int64)
        n_ops = record.ops.height
        first_read, first_made = np.full(len(known), n_ops), np.full(len(known), n_ops)
        np.minimum.at(first_read, content[inputs.flat], inputs.rows)
        np.minimum.at(first_made, content[outputs.flat], outputs.rows)
        maker = np.where(first_made < first_read, first_made, -1).astype(np.int64)
        return cls(record, values, inputs, outputs, content, storage, maker)

    @property
    def n_ops(self) -> int:
        """Number of operators."""
        return self.record.ops.height

    @property
    def names(self) -> list[str]:
        """(operators,) names without namespace and overload."""
        return self.record.step.graph.names

    @cached_property
    def made(self) -> list[list[int]]:
        """(operators,) contents that each made."""
        out: list[list[int]] = [[] for _ in range(self.n_ops)]
        for content in np.nonzero(self.maker >= 0)[0].tolist():
            out[self.maker[content]].append(content)
        return out

    @cached_property
    def read(self) -> list[list[int]]:
        """(operators,) contents that each read."""
        return [self.content[rows].tolist() for rows in map(self.inputs.__getitem__, range(self.n_ops))]

    @cached_property
    def is_view(self) -> Bools:
        """(operators,) it makes nothing, it only shows what was there in another way."""
        makes = np.zeros(self.n_ops, bool)
        makes[self.maker[self.maker >= 0]] = True
        return np.asarray(~makes & (np.diff(self.outputs.start) > 0))

    @cached_property
    def last_read(self) -> Ints:
        """(contents,) last operator but views to read it, -1 where there is none."""
        last = np.full(len(self.storage), -1, np.int64)
        real = ~self.is_view[self.inputs.rows]
        np.maximum.at(last, self.content[self.inputs.flat[real]], self.inputs.rows[real])
        return last

    @cached_property
    def overwritten(self) -> Ints:
        """(contents,) operator that writes the next content into the same storage, `n_ops` where none does."""
        # contents are sorted by storage, then version
        following = np.append(self.storage[1:] == self.storage[:-1], False)
        at = np.append(self.maker[1:], -1)
        return np.where(following, at, self.n_ops).astype(np.int64)

    @cached_property
    def owned(self) -> Bools:
        """(contents,) of a parameter, buffer, gradient or optimizer state."""
        return self._any_of_storage(self.values["role"].is_in(OWNED).fill_null(False))

    @cached_property
    def escapes(self) -> Bools:
        """(contents,) somebody may read its storage after the step: it was there before, or is still held."""
        given = np.zeros(int(self.storage.max(initial=-1)) + 1, bool)
        given[self.storage[self.maker < 0]] = True
        held = self._any_of_storage(self.values["kept"].fill_null(True))
        return np.asarray(given[self.storage] | held | self.owned)

    def _any_of_storage(self, of_value: pl.Series) -> Bools:
        found = np.zeros(int(self.storage.max(initial=-1)) + 1, bool)
        found[self.storage[self.content[of_value.to_numpy()]]] = True
        return np.asarray(found[self.storage])

    @cached_property
    def effects(self) -> Bools:
        """(operators,) they do something that no record of values shows: send, write for the host, or unknown."""
        device = self.values["device"].fill_null("?").to_numpy()
        cpu = device == "cpu"
        to_host = np.zeros(self.n_ops, bool)
        np.logical_or.at(to_host, self.outputs.rows, cpu[self.outputs.flat])
        from_device = np.zeros(self.n_ops, bool)
        np.logical_or.at(from_device, self.inputs.rows, ~cpu[self.inputs.flat])
        plain = np.array([_PLAIN.match(name) is not None for name in self.record.ops["name"].to_list()], bool)
        stateful = np.array([name in _STATEFUL for name in self.names], bool)
        return np.asarray((to_host & from_device) | ~plain | stateful | (np.diff(self.outputs.start) == 0))

    @cached_property
    def collective(self) -> Bools:
        """(operators,) collectives and what waits for them."""
        return np.array([COLLECTIVE.match(name) is not None for name in self.record.ops["name"].to_list()], bool)

    @cached_property
    def random(self) -> Bools:
        """(operators,) their result is another one each time."""
        return np.array([name in UNINITIALISED or RANDOM.search(name) is not None for name in self.names], bool)

    @cached_property
    def recomputing(self) -> Bools:
        """(operators,) of the forward pass, run again by activation checkpointing in the backward pass."""
        again = {
            i for i, frames in self.record.stacks.items()
            if frames and not frames[0].endswith(_ENGINE) and any(map(_RECOMPUTING.search, frames))
        }  # fmt: skip
        stack = np.array([i in again for i in self.record.ops["stack_id"].to_list()], bool)
        return np.asarray(stack & (self.record.ops["phase"] == "backward").to_numpy())

    @cached_property
    def complete(self) -> bool:
        """Is every reader recorded? Not where generated kernels read values, or the device's are not told apart."""
        return not any(_INVISIBLE.search(frame) for frames in self.record.stacks.values() for frame in frames)

    @cached_property
    def layouts(self) -> list[tuple[object, ...]]:
        """(values,) offset, sizes, strides, dtype and device of each."""
        columns = self.values.select("offset", "shape", "stride", "dtype", "device").iter_rows()
        return [(offset, tuple(shape or ()), tuple(stride or ()), *rest) for offset, shape, stride, *rest in columns]

    @cached_property
    def checksum(self) -> Ints:
        """(values,) of the elements, whatever their order; 0 where `known` is False."""
        graph, ids = self.record.step.graph, self.record.step.values["value_id"].to_numpy()
        sums = np.zeros(self.values.height, np.int64)
        row = np.full(self.values.height, -1, np.int64)
        place = np.searchsorted(self.values["value_id"].to_numpy(), ids)
        if graph.fingerprint is not None:
            row[place] = np.maximum(row[place], graph.fingerprint)
            sums[place] = np.where(graph.fingerprint >= 0, graph.checksum, sums[place])
        return np.where(row >= 0, sums, 0)

    @cached_property
    def known(self) -> Bools:
        """(values,) there is a fingerprint."""
        return np.asarray(self.checksum != 0)
