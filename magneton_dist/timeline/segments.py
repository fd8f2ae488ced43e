"""A window cut into consecutive segments, each with one activity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from magneton_dist.timeline.intervals import Ints


class Activity(IntEnum):
    """What a device does; exactly one at every instant."""

    COMPUTE = 0  # only work that is not a collective
    OVERLAP = 1  # both
    TRANSFER = 2  # only a collective, all peers have arrived
    WAIT = 3  # only a collective, some peer has not arrived
    IDLE = 4  # nothing resident
    UNRESOLVED = 5  # the record does not tell
    RELEASED = 6  # the process has left


@dataclass(frozen=True)
class Segments:
    """Segment i is ``[cuts[i], cuts[i+1])`` with ``activity[i]`` (an `Activity`)."""

    cuts: Ints
    activity: NDArray[np.int8]
