"""Fields of events as numbers, whatever a generation of the profiler wrote them as."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from magneton_dist.importers.events import Args, Scalar, number

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_ELEMENTS = 1 << 56  # of a payload: more bytes than a 64-bit number counts would be none
NONE = -1  # of an id that an event does not give; ids are not negative


def times(values: Sequence[Scalar]) -> Floats:
    """Times in µs, or other numbers; NaN where one is none."""
    try:
        return np.fromiter(cast(list[float], values), np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([v if isinstance(v, (int, float)) and abs(v) < 1e300 else np.nan for v in values])


def ids(values: Sequence[Scalar]) -> Ints:
    """Ids as integers; `NONE` where one is none."""
    try:
        found = np.fromiter(cast(list[int], values), np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        found = np.array([_id(value) for value in values], np.int64)
    return np.maximum(found, NONE)


def sm_ppm(args: Sequence[Args]) -> Ints:
    """Millionths of the device's SMs that the blocks of each can hold at once; `NONE` where nothing says it."""
    blocks = times([a.blocks_per_sm for a in args])
    known = (blocks > 0) & np.isfinite(blocks)
    if not known.any():
        return np.full(len(args), NONE, np.int64)
    return np.where(known, np.rint(1e6 * np.minimum(1.0, np.where(known, blocks, 0.0))), NONE).astype(np.int64)


def _id(value: object) -> int:
    found = number(value)
    return NONE if found is None or found < 0 else found


def below(most: int, value: object) -> int | None:
    """`value` as a count or rank below `most`; None where it cannot be one."""
    found = number(value)
    return found if found is not None and 0 <= found < most else None


def ranks(value: str | list[int | float | str | None] | None) -> list[int] | None:
    """Ranks of a group; None where the list is not there or was shortened ("[0, 1, ..., 7]")."""
    if isinstance(value, str):
        if "..." in value:
            return None
        value = [*re.findall(r"\d+", value)]
    ranks = [number(v) for v in value or ()]
    return [r for r in ranks if r is not None] or None


def first_input(args: Args) -> tuple[int | None, str | None]:
    """Elements and type of the first tensor of an annotation (`Input Dims`, `Input type`)."""
    try:
        dims = msgspec.json.decode(args.dims, type=list[list[int]]) if args.dims else []
        types = msgspec.json.decode(args.types, type=list[str]) if args.types else []
    except msgspec.MsgspecError:
        return None, None
    if not dims or not dims[0] or not types or not types[0]:
        return None, None
    elements = 1
    for length in dims[0]:
        elements *= length
    return below(MOST_ELEMENTS, elements), types[0]
