"""Which operators of a step compute what an earlier one has computed: value numbering.

Two contents have one number when they are copies of each other, or made by the same operator with the same
arguments from inputs of one number in one layout. That follows from the program; equal fingerprints of what
both made confirm it. Parameters that merely start out equal have numbers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np
import polars as pl

from magneton_dist.detect.operators.flow import COPIES, Flow
from magneton_dist.matching.arrays import Ints

LEAST_BYTES = 256  # of inputs that are taken for one another when their bits are equal


@dataclass(frozen=True, eq=False)
class Numbering:
    """Numbers of a step.

    Attributes:
        number: (contents,) equal for equal contents.
        first: (operators,) the earlier one that does the same, or -1.
    """

    number: Ints
    first: Ints


def number_values(flow: Flow) -> Numbering:
    """Number the contents of a step."""
    fresh = count(1)
    number = np.zeros(len(flow.storage), np.int64)
    given: dict[object, int] = {}
    key_of = _given_alike(flow)
    for content in np.nonzero(flow.maker < 0)[0].tolist():
        key = key_of.get(content, ("content", content))
        if key not in given:
            given[key] = next(fresh)
        number[content] = given[key]
    arguments = flow.record.ops["arguments"].fill_null("").str.replace_all(r'"v":\d+', '"v":0').to_list()
    names = flow.record.ops["name"].to_list()
    layouts, content_of = flow.layouts, flow.content
    unique = flow.random | (flow.effects & ~flow.collective)
    seen: dict[object, int] = {}
    first = np.full(flow.n_ops, -1, np.int64)
    for op in range(flow.n_ops):
        made = flow.made[op]
        if not made:
            continue
        if unique[op]:
            for content in made:
                number[content] = next(fresh)
            continue
        reads, makes = flow.inputs[op].tolist(), flow.outputs[op].tolist()
        source = _copied(flow, op, reads, makes)
        if source >= 0:
            number[made[0]] = number[source]
            continue
        key = (
            names[op],
            arguments[op],
            tuple((int(number[content_of[v]]), layouts[v]) for v in reads),
            tuple(layouts[v] for v in makes[: len(made)]),
        )
        earlier = seen.setdefault(key, op)
        alike = earlier != op and len(flow.made[earlier]) == len(made)
        if alike and flow.collective[op]:  # what its peers sent may differ
            alike = bool(reads) and same_results(flow, op, earlier)
        if alike:
            first[op] = earlier
            number[made] = number[flow.made[earlier]]
        else:
            for content in made:
                number[content] = next(fresh)
    return Numbering(number, first)


def same_results(flow: Flow, op: int, earlier: int) -> bool:
    """Do the fingerprints of what both made say that it is the same? Not where none was taken, or all is zero."""
    one, other = (_made_values(flow, o) for o in (op, earlier))
    if len(one) != len(other):
        return False
    known = flow.known[one] & flow.known[other]
    return bool(known.any() and (flow.checksum[one] == flow.checksum[other])[known].all())


def _made_values(flow: Flow, op: int) -> Ints:
    """Values that `op` made, one for each content."""
    values = flow.outputs[op]
    mine = values[flow.maker[flow.content[values]] == op]
    return np.asarray(mine[np.unique(flow.content[mine], return_index=True)[1]])


def _given_alike(flow: Flow) -> dict[int, object]:
    """Contents of inputs of floating point, with the key of those whose bits are equal."""
    values = flow.values.with_columns(
        pl.Series("content", flow.content), pl.Series("checksum", flow.checksum), pl.Series("known", flow.known)
    )
    inputs = values.filter(
        pl.col("known") & (pl.col("role") == "input") & (pl.col("version") == 0) & (pl.col("offset") == 0)
        & pl.col("dtype").str.contains("float") & (pl.col("bytes") >= LEAST_BYTES)
    )  # fmt: skip
    alike = inputs.unique("content", keep="first", maintain_order=True).sort("content")
    rows = alike.select("content", "checksum", "dtype", "device", "shape", "stride").iter_rows()
    return {content: (*rest, tuple(shape), tuple(stride)) for content, *rest, shape, stride in rows}


def _copied(flow: Flow, op: int, reads: list[int], makes: list[int]) -> int:
    """The content that `op` copies as it is, layout and all; -1 when it does something else."""
    if flow.names[op] not in COPIES or len(reads) != 1 or not makes:
        return -1
    return int(flow.content[reads[0]]) if flow.layouts[reads[0]] == flow.layouts[makes[0]] else -1
