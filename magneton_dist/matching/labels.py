"""Step 1 of the matcher: give values that may be equal the same label, without comparing pairs."""

from __future__ import annotations

import numpy as np

from magneton_dist.matching.arrays import Floats, Ints
from magneton_dist.matching.graph import FEATURES, UNKNOWN, MatchGraph

SMALLEST = 1e-300


def label_values(a: MatchGraph, b: MatchGraph, eps: float) -> tuple[Ints, Ints]:
    """Label the values of both graphs; values within `eps` of each other share a label.

    Within (kind, numel) every feature coordinate is cut where the gap between sorted neighbours exceeds
    `eps`: O(k n log n) for n values and k coordinates. Chains of small gaps can put unequal values under one
    label, never equal values under two; `matching.pairing` sorts the former out. Values without a
    fingerprint have labels of their own.

    Returns:
        labels of a's values and of b's values.
    """
    coordinates = np.vstack([a.features, b.features])
    # relative gaps where there is a scale: |x - y| <= eps max(x, y) becomes a distance of logarithms
    scaled = np.arange(coordinates.shape[1]) % FEATURES < 3
    coordinates[:, scaled] = np.log(np.maximum(coordinates[:, scaled], SMALLEST))
    kind, numel = np.concatenate([a.kind, b.kind]), np.concatenate([a.numel, b.numel])
    unknown = np.nonzero(kind == UNKNOWN)[0]
    numel[unknown] = -1 - unknown
    order = np.lexsort((numel, kind))
    label = _number(order, (np.diff(kind[order]) != 0) | (np.diff(numel[order]) != 0))
    gap = -np.log1p(-eps)
    for _ in range(2):  # a cut in one coordinate can open gaps in another
        for c in range(coordinates.shape[1]):
            label = _split(label, coordinates[:, c], gap)
    return label[: a.n_values], label[a.n_values :]


def _split(label: Ints, x: Floats, gap: float) -> Ints:
    order = np.lexsort((x, label))
    return _number(order, (np.diff(label[order]) != 0) | (np.diff(x[order]) > gap))


def _number(order: Ints, cut: np.ndarray) -> Ints:
    """Labels by place in `order`; a new one begins after every `cut`."""
    label = np.empty(len(order), np.int64)
    label[order] = np.concatenate([[0], np.cumsum(cut)])[: len(order)]
    return label
