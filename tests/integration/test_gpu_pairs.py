"""How the GPU check looks for causes, on a CPU, and what it looks at there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu import pairs
from gpu.pairs import BENCHMARK, FASTPATH, FLASH, TF32, Pair, alike, cause_of, convolution, tensor

from magneton_dist.diagnosis.calls import SDPA, Call
from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.diagnosis.prove import Verdict
from magneton_dist.diagnosis.replica import replica_of
from magneton_dist.diagnosis.switches import find

MKLDNN, BF16 = "torch.backends.mkldnn.enabled", "torch.backends.mkldnn.matmul.fp32_precision"
SHOWN_IN_WHOLE_JOBS = ("precision", "attention")  # by other tests
DECOYS = {FASTPATH: "False", TF32: "tf32"}


def small(*shape: int, order: str = "contiguous_format") -> Any:
    return tensor(*shape, dtype="float32", device="cpu", order=order)


PRODUCT = Call("aten.mm.default", ({"v": 0}, {"v": 1}), (small(64, 64), small(64, 64)))
KERNEL, IMAGE = small(16, 16, 3, 3), small(2, 16, 14, 14)
STAND_INS = (
    Pair("precision", BF16, alike(PRODUCT), {BF16: "bf16", BENCHMARK: "True", FLASH: "False", **DECOYS}),
    Pair(
        "attention", FLASH, alike(Call(SDPA, ({"v": 0}, {"v": 1}, {"v": 2}), (small(1, 2, 8, 8),) * 3)),
        {FLASH: "False", BENCHMARK: "True", FASTPATH: "False"},
    ),
    Pair(
        "layout", "layout of input",
        ((convolution(IMAGE, KERNEL), convolution(replace(IMAGE, stride=(3136, 1, 224, 16)), KERNEL)),),
        {BENCHMARK: "True", FLASH: "False", **DECOYS},
    ),
    # the first call is one that the flag does not concern
    Pair("primitive", MKLDNN, alike(PRODUCT, convolution(IMAGE, KERNEL)), {MKLDNN: "False", FLASH: "False", **DECOYS}),
)  # fmt: skip


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with Laboratory(120) as made:
        yield made


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair.what, marks=pytest.mark.soak if pair.what in SHOWN_IN_WHOLE_JOBS else ())
        for pair in STAND_INS
    ],
)
def test_the_cause_of_a_stand_in_is_proved_and_no_decoy_is_named(pair: Pair, laboratory: Laboratory):
    if pair.cause == BF16 and not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor has one way to do it")
    found = cause_of(pair, laboratory)
    assert (found.verdict, found.named, found.blamed, found.why) == (Verdict.PROVED, [pair.cause], [], "")
    assert sorted(found.decoys) == sorted(pair.flips.keys() - {pair.cause})


def test_decoys_alone_are_no_cause(laboratory: Laboratory):
    found = cause_of(Pair("nothing", "", alike(PRODUCT), {BENCHMARK: "True", **DECOYS}), laboratory)
    assert (found.named, found.why) == ([], "both worlds run the same kernels")
    assert str(found).startswith("no cause: both worlds run the same kernels; of 3 decoys none named; ")


def test_time_that_is_over_and_what_cannot_run_are_said(laboratory: Laboratory):
    with Laboratory(0.0) as over:
        assert cause_of(STAND_INS[0], over).why == "the time for the diagnosis is over"
    if not torch.cuda.is_available():
        assert "CUDA" in cause_of(pairs.PAIRS[0], laboratory).why


SHAPES = {
    "TF32 flag": [(2048, 2048)],
    "SDPA backend": [(4, 16, 1024, 64)],
    "channels_last": [(32, 256, 56, 56)],
    "cudnn.benchmark": [(64, 64, 112, 112), (32, 256, 56, 56), (8, 512, 14, 14)],
}


@pytest.mark.parametrize("pair", pairs.PAIRS, ids=lambda pair: pair.what)
def test_the_pairs_for_a_gpu_are_calls_and_settings_that_torch_has(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """Without a GPU: on tensors that have no memory. The shapes of what comes out are worked out by hand."""
    monkeypatch.setattr(torch, "randn", lambda n, dtype, generator: torch.empty(n, dtype=dtype, device="meta"))
    shapes = []
    for mine, theirs in pair.calls:
        for call in (mine, theirs):
            on_meta = replace(call, tensors=tuple(replace(t, device="meta") for t in call.tensors))
            shapes.append(tuple(replica_of(on_meta.described())().shape))
    assert shapes == [shape for shape in SHAPES[pair.what] for _ in range(2)]
    assert all(find(name) for name in (*pair.flips, *pair.both))
    assert pair.cause in pair.flips or pair.cause == "layout of input"
    assert pair.calls[0][1].tensors[0].layout == ("channels_last" if pair.cause not in pair.flips else "contiguous")
