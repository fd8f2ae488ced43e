"""The matcher's view of a recorded operator graph: flat arrays, operators in execution order.

Values are in SSA form: every value has at most one producing operator, and execution order is a topological
order. Value features come from the fingerprints (`matching.fingerprints`); this module knows only arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from magneton_dist.matching.arrays import Bools, Floats, Ints, Ragged
from magneton_dist.matching.fingerprints import Fingerprints

INTEGER, FLOAT, COMPLEX = 0, 1, 2  # kinds of numbers; integers with bools
FEATURES = 5  # per value and traced step
SHARD_A, SHARD_B = 3, 4  # a part of a larger value: equal to nothing on the other side
UNKNOWN = -1  # no fingerprint: equal to nothing
LAYOUT_OPERATORS = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "select", "split",
    "split_with_sizes", "unsqueeze", "squeeze", "clone", "contiguous", "_to_copy", "copy_", "detach", "alias",
    "as_strided", "unbind", "chunk", "narrow", "cat", "stack", "lift_fresh", "wait_tensor", "_conj", "numpy_T",
})


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
    kind: Ints  # one of the above
    numel: Ints
    # |x|2, |x|1/(|x|2 sqrt N), |x|4/|x|2, sum/|x|1, share of elements that are not finite; again for every step
    features: Floats
    checksum: Ints  # order-independent sum over the bits of all elements
    anchor: Bools  # False: constant, zero, noise or tiny, too common to say which value it is
    slot: Ints  # code of the parameter's name and role, equal in both graphs for equal names; -1 unknown
    # for the second look at values that the features cannot tell apart
    fingerprints: Fingerprints | None = None
    fingerprint: Ints | None = None  # (values,) row in `fingerprints`, -1 without one

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
