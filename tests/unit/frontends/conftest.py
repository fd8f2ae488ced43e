"""What a record says, in a form that tests can write down."""

from __future__ import annotations

import numpy as np
import pytest

from magneton_dist.frontends.graph_record import GraphRecord

LEVELS = ["sum", "l1", "l2", "l4", "excluded"]


class Shown:
    """A record read by the names of its operators."""

    def __init__(self, record: GraphRecord) -> None:
        self.record = record
        self.fingerprints = {
            value: row for row in record.fingerprints.iter_rows(named=True) for value in row["values"]
        }

    @property
    def names(self) -> list[str]:
        """Operators without namespace and overload."""
        return [name.split(".")[1] for name in self.record.ops["name"]]

    def op(self, name: str, nth: int = 0) -> dict[str, object]:
        """The nth operator of that name."""
        return [
            op for op in self.record.ops.iter_rows(named=True) if op["name"].split(".")[1] == name
        ][nth]

    def output(self, name: str, nth: int = 0) -> dict[str, object]:
        """Fingerprint of the first output of the nth operator of that name."""
        return self.fingerprints[self.op(name, nth)["outputs"][0]]

    def value(self, value_id: int) -> dict[str, object]:
        """Row of a value."""
        (row,) = self.record.values.filter(value_id=value_id).iter_rows(named=True)
        return row

    def functions(self, name: str) -> list[str]:
        """Functions of the stack of an operator, innermost first."""
        stack_id = self.op(name)["stack_id"]
        (frames,) = self.record.stacks.filter(stack_id=stack_id)["frames"].to_list()
        return [frame["function"] for frame in frames]


def same(a: dict[str, object], b: dict[str, object], rtol: float = 1e-5) -> bool:
    """Do two fingerprints speak of the same numbers? Sums may cancel: they are compared on the scale of l1."""
    levels = all(np.isclose(a[level], b[level], rtol=rtol, atol=rtol * a["l1"]) for level in LEVELS)
    unfolded = a["unfoldings"] == b["unfoldings"] and np.allclose(sorted(a["s4"]), sorted(b["s4"]), rtol=10 * rtol)
    return a["elements"] == b["elements"] and levels and unfolded


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
