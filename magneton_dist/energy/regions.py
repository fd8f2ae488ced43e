"""Operators' joules, seconds and bytes summed over regions, for all ranks of a class at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from magneton_dist.matching.arrays import Floats, Ints


def region_sums(amounts: npt.NDArray[np.generic], region: Ints, count: int) -> Floats:
    """Sum over the operators of each region.

    Args:
        amounts: (ranks, operators) of any one quantity.
        region: (operators,) region of each, below `count`.
        count: number of regions.

    Returns:
        (ranks, regions); regions without operators are 0.
    """
    operators = len(region)
    member = csr_array((np.ones(operators), (region, np.arange(operators))), shape=(count, operators))
    return np.asarray((member @ amounts.astype(np.float64).T).T)
