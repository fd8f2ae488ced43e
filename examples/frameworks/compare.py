"""Record one function in two frameworks and show which of their operators do the same work.

    python examples/frameworks/compare.py block torch jax
"""

from __future__ import annotations

import argparse
import importlib

import arrays

import magneton_dist
from magneton_dist.frontends.graph_record import GraphRecord

FUNCTIONS = ("block", "stft", "expm", "count_nonzero")
MODULES = {"torch": "in_torch", "fx": "in_torch", "jax": "in_jax", "tensorflow": "in_tensorflow"}


def record(function: str, framework: str) -> GraphRecord:
    inputs = getattr(arrays, function)()
    if MODULES[framework] == "in_torch":
        import torch

        inputs = {name: torch.from_numpy(array) for name, array in inputs.items()}
    called = getattr(importlib.import_module(MODULES[framework]), function)
    return magneton_dist.record(called, inputs, framework=framework, name=function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", choices=FUNCTIONS)
    parser.add_argument("a", choices=tuple(MODULES))
    parser.add_argument("b", choices=tuple(MODULES))
    args = parser.parse_args()
    print(magneton_dist.compare(record(args.function, args.a), record(args.function, args.b)))


if __name__ == "__main__":
    main()
