"""Pairs of calls on a GPU of which somebody knows what makes them differ: is it found, and no decoy?

    PYTHONPATH=. python3 tests/gpu/pairs.py

does that alone, where torch and numpy are all there is. `tests/gpu/check` does it, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from magneton_dist.diagnosis.calls import SDPA, Call, Tensor
from magneton_dist.diagnosis.factors import argument_factors, is_setting, setting_factors
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError
from magneton_dist.diagnosis.prove import Flipped, Verdict, prove
from magneton_dist.diagnosis.trial import NOTHING, Side, Signature, Trial, together
from magneton_dist.tracer.knobs import emit_knobs

BUDGET_S = 60.0  # of all pairs
FLASH, FASTPATH = "torch.backends.cuda.flash_sdp_enabled", "torch.backends.mha.get_fastpath_enabled"
BENCHMARK, TF32 = "torch.backends.cudnn.benchmark", "torch.backends.cuda.matmul.fp32_precision"
_SHOWN = 70  # characters of a kernel's name


@dataclass(frozen=True)
class Pair:
    """A call in two worlds.

    Attributes:
        cause: a setting, or an argument, as `explain` names it.
        calls: as world A and as world B makes it; of several that one counts whose kernels differ first.
        flips: settings of world B alone, the cause among decoys. both: of both worlds.
    """

    what: str
    cause: str
    calls: tuple[tuple[Call, Call], ...]
    flips: Mapping[str, str]
    both: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Found:
    """What came of a pair.

    Attributes:
        named: what is said to be the cause, nothing if `why` there is none.
        decoys: all that was flipped and is not the cause. blamed: those of them that are named.
        kernels: that only run in A, and only in B. read_set: what the call asks or tells otherwise in A and in B.
    """

    verdict: Verdict = Verdict.ALIKE
    named: list[str] = field(default_factory=list)
    decoys: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)
    kernels: tuple[str, str] = ("", "")
    read_set: str = ""
    why: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        found = f"{' and '.join(self.named)}: {self.verdict}" if self.named else f"no cause: {self.why}"
        found += f"; of {len(self.decoys)} decoys {', '.join(self.blamed) or 'none'} named; {self.seconds:.1f} s"
        return f"{found}; runs {' / '.join(self.kernels)}; read-set: {self.read_set}" if self.named else found


def tensor(*shape: int, dtype: str, device: str = "cuda:0", order: str = "contiguous_format") -> Tensor:
    """A tensor that lies in this memory format."""
    stride = torch.empty(shape, device="meta").contiguous(memory_format=getattr(torch, order)).stride()
    return Tensor(shape, tuple(stride), dtype, device)


def convolution(input_: Tensor, weight: Tensor, stride: int = 1) -> Call:
    """A convolution of two dimensions that keeps the size, but for its stride."""
    pad = weight.shape[-1] // 2
    plain = (None, [stride, stride], [pad, pad], [1, 1], False, [0, 0], 1)
    return Call("aten.convolution.default", ({"v": 0}, {"v": 1}, *plain), (input_, weight))


def alike(*calls: Call) -> tuple[tuple[Call, Call], ...]:
    """Calls that both worlds make alike."""
    return tuple((call, call) for call in calls)


def _pairs() -> tuple[Pair, ...]:
    square, each = tensor(2048, 2048, dtype="float32"), tensor(4, 16, 1024, 64, dtype="bfloat16")
    half, layouts = tensor(256, 256, 3, 3, dtype="bfloat16"), ("contiguous_format", "channels_last")
    one, other = (tensor(32, 256, 56, 56, dtype="bfloat16", order=order) for order in layouts)
    shapes = (  # heuristics need not choose what is fastest, nor differ from it
        ((64, 3, 224, 224), (64, 3, 7, 7), 2), ((32, 256, 56, 56), (256, 256, 3, 3), 1),
        ((8, 512, 14, 14), (512, 512, 5, 5), 1),
    )  # fmt: skip
    convolutions = [
        convolution(tensor(*of, dtype="float32"), tensor(*by, dtype="float32"), stride) for of, by, stride in shapes
    ]
    return (
        Pair(
            "TF32 flag", TF32, alike(Call("aten.mm.default", ({"v": 0}, {"v": 1}), (square, square))),
            {TF32: "tf32", BENCHMARK: "True", FLASH: "False"},
        ),
        Pair(
            "SDPA backend", FLASH, alike(Call(SDPA, ({"v": 0}, {"v": 1}, {"v": 2}), (each, each, each))),
            {FLASH: "False", BENCHMARK: "True", FASTPATH: "False"},  # not TF32: it matters where FLASH is off
            both={f"torch.backends.cuda.{name}_sdp_enabled": "False" for name in ("cudnn", "mem_efficient")},
        ),
        Pair(
            "channels_last", "layout of input", ((convolution(one, half), convolution(other, half)),),
            {TF32: "tf32", FLASH: "False"},
        ),
        Pair(
            "cudnn.benchmark", BENCHMARK, alike(*convolutions),
            {BENCHMARK: "True", TF32: "tf32", FLASH: "False"},
        ),
    )  # fmt: skip


PAIRS = _pairs()


def cause_of(pair: Pair, laboratory: Laboratory) -> Found:
    """Look for the cause as `explain` does: by flipping every difference on its own, in fresh processes."""
    found, start_s = Found(), time.monotonic()
    try:
        _look(pair, laboratory, found)
    except OutOfTimeError as error:
        found.why = error.what
    found.seconds = time.monotonic() - start_s
    return found


def _look(pair: Pair, laboratory: Laboratory, found: Found) -> None:
    a, b = (_settings(laboratory, {**pair.both, **flips}) for flips in ({}, pair.flips))
    differing, _ = setting_factors(a, b)
    for mine, theirs in pair.calls:
        trial = Trial(laboratory, Side(a, mine), Side(b, theirs), differing, os.environ)
        trial.factors = [*together(trial, differing), *argument_factors(mine, theirs)]
        found.decoys = [factor.name for factor in trial.factors if factor.name != pair.cause]
        found.why = _prove(trial, found)
        if not found.why:
            break
    found.blamed = [name for name in found.named if name != pair.cause]


def _prove(trial: Trial, found: Found) -> str:
    """What makes this call differ, into `found`; or why there is nothing to prove."""
    nothing, everything = frozenset[int](), frozenset(range(len(trial.factors)))
    one, other = trial.signature(nothing), trial.signature(everything)
    if one.error or other.error:
        return one.error or other.error
    if one == other:
        return "both worlds run the same kernels"
    if one != trial.signature(nothing) or other != trial.signature(everything):
        return "kernels differ from process to process"
    known = {nothing: one, everything: other}
    proof = prove(len(trial.factors), lambda flipped: known.get(flipped) or trial.behaves(flipped))
    found.verdict, found.named = proof.verdict, [trial.factors[number].name for number in proof.factors]
    found.kernels, found.read_set = (_only(one, other), _only(other, one)), _asked(trial, nothing, everything)
    return ""


def _asked(trial: Trial, nothing: Flipped, everything: Flipped) -> str:
    """What the call asks of torch's settings, or tells libraries, otherwise in both worlds; or why nobody knows."""
    (a, error), (b, other) = trial.read_set(nothing), trial.read_set(everything)
    differ = ", ".join(f"{g} {a.get(g)} / {b.get(g)}" for g in sorted(a | b) if a.get(g) != b.get(g))
    return error or other or differ or "the same"


def _settings(laboratory: Laboratory, flips: Mapping[str, str]) -> dict[str, str]:
    """All of torch's settings that the tracer records, in a fresh process with these set."""
    names: list[str] = []
    spool: Any = SimpleNamespace(put=lambda _, name, value: names.append(name), fault=lambda *_: None)
    emit_knobs(spool)
    question = {**NOTHING, "flips": list(flips.items()), "read": [name for name in names if is_setting(name)]}
    answer = laboratory.ask(os.environ, question)
    if answer.get("refused", answer.get("error")):
        raise RuntimeError(f"settings could not be made: {answer}")
    return dict(answer["read"])


def _only(one: Signature, other: Signature) -> str:
    """The first kernel that only one of two signatures has; of a CPU, primitive or operator."""
    for layer in ("kernels", "primitives", "operators"):
        only = [name for name in getattr(one, layer) if name not in getattr(other, layer)]
        if only:
            return str(only[0])[:_SHOWN]
    return "nothing else"


if __name__ == "__main__":
    with Laboratory(BUDGET_S) as laboratory:
        for pair in PAIRS:
            print(f"{pair.what}: {cause_of(pair, laboratory)}", flush=True)
