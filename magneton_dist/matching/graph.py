"""The matcher's view of a recorded operator graph: flat arrays, operators in execution order.

Values are in SSA form: every value has at most one producing operator, and execution order is a topological
order. Value features come from the fingerprints (`matching.fingerprints`); this module knows only arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEATURES = 5  # |x|2, |x|1/(|x|2 sqrt N), |x|4/|x|2, sum/(|x|2 sqrt N), non-finite fraction
LAYOUT_OPERATORS = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "select", "split",
    "split_with_sizes", "unsqueeze", "squeeze", "clone", "contiguous", "_to_copy", "copy_", "detach", "alias",
    "as_strided", "unbind", "chunk", "narrow", "cat", "stack", "lift_fresh", "wait_tensor", "_conj", "numpy_T",
})


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of ints of different lengths: list i is ``flat[start[i]:start[i + 1]]``."""

    start: Ints
    flat: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """Pack `lists`."""
        start = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(x) for x in lists], out=start[1:])
        flat = np.fromiter((v for x in lists for v in x), np.int64, int(start[-1]))
        return cls(start, flat)

    @property
    def rows(self) -> Ints:
        """The list that each entry of `flat` belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def lists(self) -> list[list[int]]:
        """As Python lists."""
        flat, start = self.flat.tolist(), self.start.tolist()
        return [flat[i:j] for i, j in zip(start, start[1:], strict=False)]


@dataclass(frozen=True, eq=False)
class MatchGraph:
    """One graph to match.

    Operators are numbered in execution order, values arbitrarily. Shapes: `features` (values, 5), all other
    value arrays (values,), operator lists (operators,).
    """

    names: list[str]  # operator names without namespace and overload
    phases: Ints  # code per operator
    inputs: Ragged
    outputs: Ragged
    kind: Ints  # 0 integer or bool, 1 floating, 2 complex
    numel: Ints
    features: Floats
    checksum: Ints  # order-independent sum over the bits of all elements
    anchor: Bools  # False: constant, zero, noise or tiny, too common to say which value it is
    slot: Ints  # code of the parameter's name and role, equal in both graphs for equal names; -1 unknown

    @property
    def n_ops(self) -> int:
        """Number of operators."""
        return len(self.names)

    @property
    def n_values(self) -> int:
        """Number of values."""
        return len(self.numel)

    def producers(self) -> Ints:
        """Producing operator of every value, -1 for what the graph was given."""
        producer = np.full(self.n_values, -1, np.int64)
        producer[self.outputs.flat] = self.outputs.rows
        return producer

    def first_uses(self) -> Ints:
        """First reading operator of every value, `n_ops` when none reads it."""
        first = np.full(self.n_values, self.n_ops, np.int64)
        np.minimum.at(first, self.inputs.flat, self.inputs.rows)
        return first

    def lanes(self, op: int, inputs: list[int], outputs: list[int]) -> list[tuple[list[int], list[int]]]:
        """The element-wise dependencies inside an operator on lists.

        Output i of ``_foreach_*`` and fused optimizers depends on element i of every list only.
        """
        name = self.names[op]
        if len(outputs) > 1 and name.startswith(("_foreach_", "_fused_")):
            n = gcd(len(inputs), len(outputs))
            if n > 1:
                return [(inputs[i::n], outputs[i::n]) for i in range(n)]
        return [(inputs, outputs)]
