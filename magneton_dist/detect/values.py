"""Do two variants end with the same parameters?

The tracer leaves a digest of every parameter at the end of a run (`records.schema.PARAMETERS`): sums,
norms, a checksum of the bits, and eight sums under fixed random signs. The signs make the distance of two
runs' parameters visible without shipping them: for d = a - b, E[(s . d)^2] = |d|^2 for random signs s
(Johnson-Lindenstrauss with +-1 entries, Achlioptas 2003), so the mean over eight sums estimates |d|^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class ValuesCheck:
    """Result of comparing two sets of parameters."""

    error: float  # largest relative distance |a - b| / max(|a|, |b|) over the parameters, 0 when bit-equal
    bit_equal: bool
    worst: str  # the parameter with the largest error
    compared: int


def compare_parameters(a: pl.DataFrame, b: pl.DataFrame) -> ValuesCheck | None:
    """Compare two PARAMETERS tables.

    Returns None when they cannot be compared: one of them is empty, or the names or shapes differ.
    """
    if not a.height or not b.height:
        return None
    joined = a.join(b, on=["name", "shape"], how="inner", suffix="_b", maintain_order="left")
    if joined.height != a.height or joined.height != b.height:
        return None
    exact = (joined["exact"] == joined["exact_b"]).to_numpy()
    # Pad-free: every row has the same number of projections.
    pa = np.array(joined["projections"].to_list(), dtype=np.float64)
    pb = np.array(joined["projections_b"].to_list(), dtype=np.float64)
    distance = np.sqrt(np.mean((pa - pb) ** 2, axis=1))
    norm = np.maximum(joined["l2"].to_numpy(), joined["l2_b"].to_numpy())
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(exact | (distance == 0), 0.0, distance / norm)
    error = np.where(np.isnan(error), np.inf, error)
    worst = int(np.argmax(error))
    return ValuesCheck(
        error=float(error[worst]),
        bit_equal=bool(exact.all()),
        worst=str(joined["name"][worst]),
        compared=joined.height,
    )
