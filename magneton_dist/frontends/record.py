"""`magneton_dist.record`: the operator graph of any callable."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from magneton_dist.errors import InputError
from magneton_dist.frontends.graph_record import GraphRecord, recording

_RECORDERS = {
    "torch": "magneton_dist.frontends.torch_eager",
    "fx": "magneton_dist.frontends.fx",
    "jax": "magneton_dist.frontends.jaxpr",
    "tensorflow": "magneton_dist.frontends.tf_graph",
}
# Packages by which a callable or an input gives its framework away.
_HOMES = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
}


def record(
    function: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    framework: str = "auto",
    path: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> GraphRecord:
    """Run a callable once and record every operator, with the fingerprints of all values.

    Args:
        function: a function, module or compiled function.
        inputs: its positional arguments, or its keyword arguments by name.
        framework: ``torch`` (as executed: also backward passes and optimizer steps inside `function`), ``fx``
            (torch, captured by TorchDynamo, forward only), ``jax``, ``tensorflow``, or ``auto``: by the
            types of the inputs and of the function.
        path: also write a run of one rank there, to be opened with `magneton_dist.load`.
        name: of the record; the function's name by default.

    Raises:
        InputError: the framework is unknown, cannot be told, is not installed, or cannot capture `function`; or `path`
            cannot be written.
    """
    args, kwargs = _arguments(inputs)
    if framework == "auto":
        framework = _framework_of(function, [*args, *kwargs.values()])
    recorder = _recorder(framework)
    known_as = str(name or getattr(function, "__qualname__", type(function).__qualname__))
    with recording(known_as, framework, recorder.VERSIONS) as (spool, result):
        recorder.record(function, args, kwargs, spool)
    result.tables["ops"] = _with_forward(result.tables["ops"])
    if path is not None:
        result.save(Path(path))
    return result


def _arguments(inputs: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    raise InputError(
        f"inputs is a {type(inputs).__name__}",
        where="record",
        do="give a tuple of positional arguments or a mapping of keyword arguments",
    )


def _framework_of(function: Callable[..., Any], inputs: list[Any]) -> str:
    found = {_HOMES[home] for thing in [function, *_leaves(inputs)] for home in _homes(thing) if home in _HOMES}
    if len(found) == 1:
        return found.pop()
    what = "its function and inputs belong to none" if not found else f"found {' and '.join(sorted(found))}"
    raise InputError(
        f"the framework cannot be told: {what}", where="record", do=f"set framework= to one of {', '.join(_RECORDERS)}"
    )


def _homes(thing: Any) -> Iterator[str]:
    """Top packages of the types that `thing` is an instance of."""
    for kind in type(thing).__mro__:
        yield kind.__module__.partition(".")[0]


def _leaves(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if isinstance(inputs, (list, tuple)):
        for item in inputs:
            yield from _leaves(item)
    else:
        yield inputs


def _recorder(framework: str) -> Any:
    if framework not in _RECORDERS:
        known = ", ".join(_RECORDERS)
        raise InputError(f"no framework is called {framework!r}", where="record", do=f"use auto or one of {known}")
    try:
        return importlib.import_module(_RECORDERS[framework])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("magneton_dist"):
            raise
        raise InputError(
            f"{error.name} is not installed",
            where=f"record(framework={framework!r})",
            do=f"pip install 'magneton-dist[{framework}]'",
        ) from error


def _with_forward(ops: pl.DataFrame) -> pl.DataFrame:
    """Where nothing is differentiated, what the tracer of a job calls `other` is the forward pass."""
    if ops["phase"].is_in(["backward", "optimizer"]).any():
        return ops
    return ops.with_columns(phase=pl.lit("forward"))
