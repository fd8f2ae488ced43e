"""How well fingerprints tell which values of two runs are equal: truth, scores, and copies in another order.

The truth is found in float64: two values are equal when their sorted elements agree to 1e-9. The runs that are
judged call the same operators in lower precision, so that their values have the same ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from recorded_steps import Tables, graph_of, record
from torch.utils._python_dispatch import TorchDispatchMode

from magneton_dist.matching.crowds import Look
from magneton_dist.matching.fingerprints import (
    DIFFERENT,
    EQUAL,
    Fingerprint,
    compare_order,
    compare_unfoldings,
    moment_distance,
)
from magneton_dist.matching.fingerprints import Fingerprints as Array
from magneton_dist.matching.graph import FLOAT
from magneton_dist.matching.groups import group_values
from magneton_dist.matching.recorded import StepGraph
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.spool import Spool

TRUTH = 1e-9


class _Keeping(Fingerprints):
    """Keeps the elements of every value, sorted."""

    def __init__(self, spool: Spool, kept: dict[int, np.ndarray]) -> None:
        super().__init__(spool)
        self.kept = kept

    def _note(self, value: int, version: Any, tensor: torch.Tensor, phase: str) -> None:
        super()._note(value, version, tensor, phase)
        if tensor.is_floating_point():
            self.kept[value] = np.sort(tensor.detach().to(torch.float64).numpy(), axis=None)


def record_with_elements(step: Callable[[], object]) -> tuple[Tables, dict[int, np.ndarray]]:
    """The tables of a step, and the sorted elements of every floating value by id."""
    kept: dict[int, np.ndarray] = {}
    return record(step, fingerprints=lambda spool: _Keeping(spool, kept)), kept


def record_with_spectra(step: Callable[[], object]) -> Tables:
    """The tables of a step, with the singular values of every unfolding."""
    return record(step, fingerprints=partial(Fingerprints, spectra=True))


class _Tf32(TorchDispatchMode):
    """Rounds what goes into matrix products to the 10 bits of mantissa of TF32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"):
            factors = len(args) - 2
            args = [*args[:factors], *(_round(x) for x in args[factors:])]
        return func(*args, **(kwargs or {}))


def _round(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32)
    even = (bits >> 13) & 1
    return ((bits + 0xFFF + even) & ~0x1FFF).view(torch.float32)


@contextmanager
def tf32() -> Iterator[None]:
    """Matrix products of float32 tensors as a tensor core makes them by default."""
    with _Tf32():
        yield


@dataclass
class Population:
    """Contents of two graphs: those of one size make pairs, some of which are equal."""

    graphs: tuple[StepGraph, StepGraph]
    groups: tuple[list[list[int]], list[list[int]]]  # values of each content that is looked at
    pairs: list[tuple[int, int]]  # of contents
    truth: np.ndarray
    weight: np.ndarray  # pairs of values that each stands for

    @property
    def size(self) -> str:
        """How many pairs, how many of them equal."""
        return f"{self.weight.sum()} pairs of values, {self.weight[self.truth].sum()} equal"


def population(exact: tuple[Tables, Tables], kept: tuple[dict[int, np.ndarray], ...]) -> Population:
    """All pairs of activations and gradients of one size, with the truth, from two runs in float64."""
    graphs = graph_of(exact[0]), graph_of(exact[1])
    groups: list[list[list[int]]] = []
    for graph, elements in zip(graphs, kept, strict=True):
        ids = graph.values["value_id"].to_numpy()
        members = group_values(graph.graph).members
        usable = _computed(graph) & (graph.graph.kind == FLOAT) & np.isin(ids, list(elements))
        groups.append([values for values in members if usable[values].all()])
    by_size: dict[int, list[int]] = defaultdict(list)
    for j, values in enumerate(groups[1]):
        by_size[int(graphs[1].graph.numel[values[0]])].append(j)
    pairs, truth, weight = [], [], []
    for i, values in enumerate(groups[0]):
        mine = _elements(graphs[0], values, kept[0])
        for j in by_size.get(int(graphs[0].graph.numel[values[0]]), ()):
            other = _elements(graphs[1], groups[1][j], kept[1])
            pairs.append((i, j))
            weight.append(len(values) * len(groups[1][j]))
            truth.append(np.abs(mine - other).max() <= TRUTH * np.abs(mine).max())
    return Population(graphs, (groups[0], groups[1]), pairs, np.array(truth), np.array(weight))


def _computed(graph: StepGraph) -> np.ndarray:
    """(values,) activations and gradients that say enough to be compared; no views of weights."""
    by_op = graph.ops["phase"].is_in(["forward", "backward"]).to_numpy()
    made = np.append(by_op, False)[graph.graph.producers()] & graph.graph.anchor
    of_value = group_values(graph.graph).of_value
    others = np.zeros(of_value.max(initial=0) + 1, bool)
    others[of_value[~made]] = True
    computed: np.ndarray = ~others[of_value]
    return computed


def _elements(graph: StepGraph, values: list[int], kept: dict[int, np.ndarray]) -> np.ndarray:
    x = kept[int(graph.values["value_id"][values[0]])]
    return np.where(np.abs(x) < 1e30, x, 0.0)


Verdict = Callable[[Fingerprint, Fingerprint, float], bool]


def mean_and_deviation(a: Fingerprint, b: Fingerprint, eps: float) -> bool:
    """What the released code of the paper compares."""

    def figures(f: Fingerprint) -> np.ndarray:
        l2, l1_ratio, _, sum_ratio, _ = f.features
        mean = sum_ratio * l1_ratio  # over l2 / sqrt N
        return l2 * np.array([mean, np.sqrt(max(1 - mean**2, 0))])

    p, q = figures(a), figures(b)
    return bool((np.abs(p - q) <= eps * (np.abs(p) + np.abs(q) + 1e-8)).all())


def spectra(a: Fingerprint, b: Fingerprint, eps: float) -> bool:
    """The invariant of the paper: norms and singular values."""
    norms = sorted([a.features[0], b.features[0]])
    return bool(norms[1] - norms[0] <= eps * norms[1]) and compare_unfoldings(a, b, eps) != DIFFERENT


def moments(a: Fingerprint, b: Fingerprint, eps: float) -> bool:
    return bool(moment_distance(a.features, b.features) <= eps)


def unfoldings(a: Fingerprint, b: Fingerprint, eps: float) -> bool:
    a, b = replace(a, singular={}), replace(b, singular={})  # by s4
    return moments(a, b, eps) and compare_unfoldings(a, b, eps) != DIFFERENT


def judge(known: Population, runs: tuple[Tables, Tables], eps: float, equal: Verdict) -> np.ndarray:
    """What `equal` says of each pair of the population, from two runs in lower precision."""
    return _ask(known, runs, eps, equal) > 0


def ties_broken(known: Population, runs: tuple[Tables, Tables], eps: float) -> np.ndarray:
    """As `unfoldings`; of several that are equal to one value, those in the same order, if there are any."""
    said, order = judge(known, runs, eps, unfoldings), _ask(known, runs, eps, compare_order)
    pairs = np.array(known.pairs)
    in_order = pairs[said & (order == EQUAL)]
    better = np.isin(pairs[:, 0], in_order[:, 0]) | np.isin(pairs[:, 1], in_order[:, 1])
    return said & ~((order == DIFFERENT) & better)


def _ask(
    known: Population, runs: tuple[Tables, Tables], eps: float, compare: Callable[..., int]
) -> np.ndarray:
    graphs = [graph_of(tables) for tables in runs]
    for graph, exact in zip(graphs, known.graphs, strict=True):
        assert graph.ops["name"].equals(exact.ops["name"]), "the runs must call the same operators"
    look = Look(graphs[0].graph, graphs[1].graph, *known.groups, eps)
    return np.array([look.compare(i, j, compare) for i, j in known.pairs], int)


def f1(known: Population, said: np.ndarray) -> float:
    """Harmonic mean of precision and recall over all pairs of values."""
    right, said_equal, equal = (
        float(known.weight[chosen].sum()) for chosen in (known.truth & said, said, known.truth)
    )
    return 2 * right / (said_equal + equal)


class _Reordering(Fingerprints):
    """Takes fingerprints of two copies of every value too: sorted along its longest mode, and shuffled."""

    def __init__(self, spool: Spool, copies: dict[str, list[tuple[int, int]]]) -> None:
        super().__init__(spool)
        self.copies = copies
        self._generator = torch.Generator().manual_seed(0)

    def _note(self, value: int, version: Any, tensor: torch.Tensor, phase: str) -> None:
        super()._note(value, version, tensor, phase)
        if not tensor.is_floating_point() or sum(size > 1 for size in tensor.shape) < 2 or tensor.numel() < 64:
            return
        places = torch.randperm(tensor.numel(), generator=self._generator)
        longest = max(range(tensor.dim()), key=lambda mode: tensor.shape[mode])
        for kind, copy in (
            ("sorted", tensor.sort(longest).values),
            ("shuffled", tensor.flatten()[places].view(tensor.shape)),
        ):
            if not torch.equal(copy, tensor):
                number = -2 * value - (kind == "sorted")
                self.copies[kind].append((value, number))
                super()._note(number, (number, 0), copy, phase)


def reordered_copies(step: Callable[[], object], eps: float) -> dict[str, tuple[int, float, float]]:
    """Of activations and gradients, by kind of copy.

    Returns:
        how many, the share that unfoldings reject, the share that is seen to be reordered.
    """
    copies: dict[str, list[tuple[int, int]]] = {"sorted": [], "shuffled": []}
    tables = record(step, fingerprints=lambda spool: _Reordering(spool, copies))
    fingerprints = Array(tables["fingerprints"])
    graph = graph_of(tables)
    wanted = set(graph.values["value_id"].filter(pl.Series(_computed(graph))))
    row = {
        value: i for i, values in enumerate(tables["fingerprints"]["values"].to_list()) for value in values
    }
    out = {}
    for kind, pairs in copies.items():
        rejected, reordered = [], []
        for value, copy in pairs:
            if value not in wanted:
                continue
            x, y = fingerprints[row[value]], fingerprints[row[copy]]
            assert moments(x, y, 1e-6), "a copy holds the same elements"
            rejected.append(compare_unfoldings(x, y, eps) == DIFFERENT)
            reordered.append(compare_order(x, y, eps) == DIFFERENT)
        out[kind] = (len(rejected), float(np.mean(rejected)), float(np.mean(reordered)))
    return out
