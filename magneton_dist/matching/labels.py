"""Step 1 of the matcher: give values that may be equal the same label, without comparing pairs."""

from __future__ import annotations

import numpy as np

from magneton_dist.matching.graph import Floats, Ints, MatchGraph


def label_values(a: MatchGraph, b: MatchGraph, eps: float) -> tuple[Ints, Ints]:
    """Label the values of both graphs; values within `eps` of each other share a label.

    Within (kind, numel) every feature coordinate is cut where the gap between sorted neighbours exceeds
    `eps`: O(k n log n) for n values and k coordinates. Chains of small gaps can put unequal values under one
    label, never equal values under two; `matching.pairing` sorts the former out by context.

    Returns:
        labels of a's values and of b's values.
    """
    features = np.vstack([a.features, b.features])
    coordinates = features.copy()
    coordinates[:, 0] = np.log(np.maximum(features[:, 0], 1e-300))  # relative gaps for the norm
    exact = np.stack([np.r_[a.kind, b.kind], np.r_[a.numel, b.numel]], axis=1)
    _, label = np.unique(exact, axis=0, return_inverse=True)
    label = label.ravel().astype(np.int64)
    label = _split(label, coordinates, eps)
    label = _split(label, coordinates, eps)  # a cut in one coordinate can open gaps in another
    return label[: a.n_values], label[a.n_values :]


def _split(label: Ints, coordinates: Floats, eps: float) -> Ints:
    for c in range(coordinates.shape[1]):
        order = np.lexsort((coordinates[:, c], label))
        x, old = coordinates[order, c], label[order]
        cut = np.ones(len(order), bool)
        cut[1:] = (old[1:] != old[:-1]) | (np.abs(np.diff(x)) > eps)
        fresh = np.empty_like(label)
        fresh[order] = np.cumsum(cut) - 1
        label = fresh
    return label
