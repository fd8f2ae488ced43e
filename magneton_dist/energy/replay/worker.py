"""The process that repeats: makes operators and collectives, runs them when told. Needs torch alone.

It is a process of its own because settings such as thread counts, and a CUDA context, are a process's. Questions
and answers are lines of JSON on stdin and stdout; both sides read the same monotonic clock. It ends with its stdin.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch

from magneton_dist.energy.replay.collective import Collective, join
from magneton_dist.energy.replay.loops import DeviceLoop, Loop, loop_on
from magneton_dist.energy.replay.operator import Operator
from magneton_dist.errors import MagnetonError

# Settings of a record that decide which kernels run; each is true or false.
SWITCHES = tuple(
    f"torch.backends.{name}"
    for name in (
        "cuda.matmul.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction",
        "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation",
        "cudnn.enabled", "cudnn.deterministic", "cudnn.benchmark", "cudnn.allow_tf32", "mkldnn.deterministic",
    )
)  # fmt: skip
SETTERS: dict[str, Callable[[str], object]] = {
    "torch.get_num_threads": lambda value: torch.set_num_threads(max(1, int(value))),
    "torch.get_float32_matmul_precision": torch.set_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled": lambda value: torch.use_deterministic_algorithms(
        value == "True", warn_only=True
    ),
}
SETTINGS = (*SETTERS, *SWITCHES)  # in the order in which they are applied


class Worker:
    """Answers questions; one thing to repeat at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._seed = 0
        self._loops: dict[bool, Loop | DeviceLoop | Collective] = {}

    def settings(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Apply these settings; answers which could not be."""
        refused = []
        for name in SETTINGS:
            if name not in values:
                continue
            try:
                _apply(name, values[name])
            except (AttributeError, RuntimeError, ValueError) as error:
                refused.append(f"{name}={values[name]}: {str(error).splitlines()[0]}")
        return {"refused": refused}

    def join(self, backend: str, rendezvous: str, rank: int, size: int) -> dict[str, Any]:
        """Become a rank."""
        join(backend, rendezvous, rank, size)
        return {}

    def operator(
        self, name: str, arguments: list[Any], values: dict[str, dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        """Make an operator; answers how it is repeated and whether inputs are put back."""
        self._loops.clear()
        self._seed = seed
        made = Operator(name, arguments, values, self._device, seed)
        made()
        self._loops[False] = loop_on(self._device, made)
        if made.restores:
            self._loops[True] = loop_on(self._device, made.restore)
        return {"how": self._loops[False].how, "restores": made.restores}

    def collective(self, op: str, payload_bytes: int, dtype: str) -> dict[str, Any]:
        """Make a collective; every rank must be told."""
        self._loops = {False: Collective(op, payload_bytes, dtype, self._device)}
        return {"how": Collective.how, "restores": False}

    def run(self, seconds: float, bare: bool = False) -> dict[str, Any]:
        """Repeat; `bare`: only what puts inputs back."""
        torch.manual_seed(self._seed)
        start_ns, end_ns, rounds = self._loops[bare].run(seconds)
        return {"start_ns": start_ns, "end_ns": end_ns, "rounds": rounds}


def _apply(name: str, value: str) -> None:
    if name in SETTERS:
        SETTERS[name](value)
        return
    *path, last = name.split(".")[1:]
    setattr(reduce(getattr, path, torch), last, value == "True")


def main(device: str) -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = Worker(device)
    with torch.no_grad():
        print(json.dumps({}), file=answers, flush=True)
        for line in sys.stdin:
            question = json.loads(line)
            try:
                answer = operator.methodcaller(question["do"], **question["with"])(worker)
            except MagnetonError as error:
                answer = {"error": str(error)}
            except Exception as error:  # noqa: BLE001 - what an operator raises is an answer: it cannot be replayed
                answer = {"error": f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
