"""Steps of small models, recorded for real."""

from collections.abc import Callable
from typing import Any

import gpt2
import numpy as np
import pytest
import torch
from fingerprint_scores import record_with_elements
from recorded_steps import Tables, record
from torch import nn

from magneton_dist.errors import RecordError
from magneton_dist.matching.graph import MatchGraph
from magneton_dist.matching.records import RecordMatch, match_records

SMALL = gpt2.Config(layers=2, width=48, heads=4, tokens=24, vocabulary=101)
IDS = gpt2.ids_of(SMALL, 3)
EPS = 1e-3


def forward(layout: str, attention: str) -> Tables:
    model = gpt2.fresh(SMALL, layout, attention)
    return record(lambda: model(IDS))


def training(layout: str, attention: str, steps: int = 1, keep: bool = False, **options: Any) -> Any:
    model = gpt2.fresh(SMALL, layout, attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)

    def step() -> None:
        optimizer.zero_grad()
        model(IDS).backward()
        optimizer.step()

    step()
    return record_with_elements(step) if keep else record(step, steps)


@pytest.fixture(scope="module")
def loop() -> Tables:
    tables: Tables = training("packed", "eager", foreach=False)
    return tables


def shared(found: RecordMatch) -> tuple[np.ndarray, np.ndarray]:
    """Of the operators of each side: is the region on both sides?"""
    regions = found.matched.regions
    return np.isin(regions.a, regions.b), np.isin(regions.b, regions.a)


def elements(graph: MatchGraph) -> np.ndarray:
    """What each operator computes."""
    return np.bincount(graph.outputs.rows, weights=graph.numel[graph.outputs.flat], minlength=graph.n_ops)


@pytest.mark.parametrize(("layout", "attention"), [("packed", "sdpa"), ("split", "eager"), ("split", "sdpa")])
def test_a_forward_pass_shares_all_work_with_other_implementations(layout, attention):
    found = match_records(forward("packed", "eager"), forward(layout, attention))
    on_both = shared(found)
    assert on_both[0].all()
    # transposes of weights that the other side keeps in one
    views = np.isin(found.b.graph.names, ["t", "permute", "view"])
    assert (on_both[1] | views).all()
    sizes = np.bincount(found.matched.regions.a)
    assert sizes.mean() < 5
    assert found.divergences() == []


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_no_operator_of_an_optimizer_is_on_one_side_only(loop, options):
    found = match_records(loop, training("packed", "eager", **options))
    for graph, both in ((found.a, shared(found)[0]), (found.b, shared(found)[1])):
        large = np.array([graph.graph.numel[graph.graph.outputs[op]].max(initial=0) >= 8 for op in range(len(both))])
        optimizer = (graph.ops["phase"] == "optimizer").to_numpy()
        assert both[large & optimizer].all()
        assert elements(graph.graph)[both].sum() / elements(graph.graph).sum() > 0.999


def test_a_step_matches_itself(loop):
    found = match_records(loop, loop)
    assert np.array_equal(found.matched.regions.a, found.matched.regions.b)
    assert (found.confidence() == 1).all()
    assert found.reordered() == []
    assert found.eps == EPS


def test_matched_values_hold_the_same_numbers_and_few_others_do():
    """Precision and recall over a training step, from the elements themselves."""
    a, kept_a = training("packed", "eager", keep=True, foreach=False)
    b, kept_b = training("split", "sdpa", keep=True, foreach=False)
    found = match_records(a, b)
    matched = found.matched

    def contents(side: Any, ids: np.ndarray, kept: dict[int, np.ndarray]) -> dict[int, list[tuple[int, np.ndarray]]]:
        """Size -> (id, sorted elements) of distinct contents that say enough."""
        out: dict[int, dict[bytes, tuple[int, np.ndarray]]] = {}
        numbers = side.values["value_id"].to_list()
        for v in np.nonzero(side.graph.anchor)[0].tolist():
            if numbers[v] in kept:
                x = kept[numbers[v]]
                out.setdefault(len(x), {}).setdefault(x.tobytes(), (int(ids[v]), x))
        return {size: list(by_bits.values()) for size, by_bits in out.items()}

    def close(x: np.ndarray, y: np.ndarray) -> bool:
        return bool(np.abs(x - y).max() <= 10 * EPS * max(np.abs(x).max(), np.abs(y).max()))

    on_a, on_b = contents(found.a, matched.value_a, kept_a), contents(found.b, matched.value_b, kept_b)
    right = wrong = missed = 0
    for size in on_a.keys() & on_b.keys():
        for i, x in on_a[size]:
            partners = [j for j, y in on_b[size] if close(x, y)]
            if i >= 0 and i in [j for j, _ in on_b[size]]:
                right, wrong = right + (i in partners), wrong + (i not in partners)
            elif len(partners) == 1 and partners[0] == -1:
                missed += 1
    assert right > 300
    assert right / (right + wrong) > 0.98
    assert right / (right + missed) > 0.97


def test_what_the_values_say_holds_in_every_step(loop):
    one = match_records(loop, loop)
    two = training("packed", "eager", steps=2, foreach=False)
    found = match_records(two, two)
    assert found.steps == (0, 1)
    assert found.graph_a.features.shape[1] == 10
    assert len(found.matched.regions.a) == len(one.matched.regions.a)
    assert found.notes == []


def test_steps_that_call_other_operators_are_left_out():
    model = nn.Linear(16, 16)
    x = torch.randn(8, 16)
    calls = iter([lambda: model(x), lambda: model(x), lambda: model(x).relu()])
    tables = record(lambda: next(calls)(), steps=3)
    found = match_records(tables, tables)
    assert found.steps == (0, 1)
    assert found.notes == ["1 of 3 traced steps call other operators and are left out"]


def test_records_that_traced_other_steps_are_refused_or_said():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    tables = record(lambda: model(x), steps=2)

    def only(step: int) -> Tables:
        return Tables(tables, ops=tables["ops"].filter(tables["ops"]["step"] == step))

    assert match_records(only(0), only(1)).notes == [
        "step 0 of the first run is compared with step 1 of the second"
    ]
    other = Tables(tables, ops=tables["ops"].with_columns(step=tables["ops"]["step"] + 5))
    with pytest.raises(RecordError, match=r"\[0, 1\] and \[5, 6\]"):
        match_records(tables, other)


def test_both_algorithms_cover_every_operator(loop):
    other = training("split", "eager", foreach=False)
    fine, coarse = match_records(loop, other), match_records(loop, other, "dominators")
    assert fine.matched.ids == coarse.matched.ids
    counts = [len(np.intersect1d(f.matched.regions.a, f.matched.regions.b)) for f in (fine, coarse)]
    assert counts[0] > 3 * counts[1] > 0


def permuted(order: torch.Tensor | None) -> Callable[[], object]:
    """Two layers on the rows of x, in some order, and back."""
    torch.manual_seed(0)
    up, down = nn.Linear(16, 40), nn.Linear(40, 16)
    x = torch.randn(20, 16) @ torch.randn(16, 16)

    def call() -> object:
        rows = x if order is None else x[order]
        y = down(up(rows).relu())
        back = y if order is None else y[torch.argsort(order)]
        return back.sum(0)

    return call


def test_work_on_permuted_rows_is_matched_and_said_to_be_reordered():
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    found = match_records(record(permuted(None)), record(permuted(order)))
    assert shared(found)[0].all()
    # the products and the activation between them; not the input, nor the sum over all rows
    names = {
        found.a.graph.names[op] for op in range(found.a.graph.n_ops)
        for v in found.a.graph.outputs[op].tolist() if int(found.matched.value_a[v]) in found.reordered()
    }  # fmt: skip
    assert names - {"detach"} == {"addmm", "relu"}


def test_a_record_without_fingerprints_says_so(loop):
    without = Tables(loop, fingerprints=loop["fingerprints"].clear())
    found = match_records(without, loop)
    assert found.matched.ids == 0
    assert found.notes == ["the first record has no fingerprints: nothing can be matched"]
