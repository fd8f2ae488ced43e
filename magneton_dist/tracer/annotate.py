"""Custom operators: a stretch of Python that shows in a record as one operator with named inputs and outputs.

Two marks, operators without effect, stand in the graph around it; `records.annotations` folds what lies
between them. Where nothing records, no mark is made: a call costs about 1 µs more. In a function under
`torch.compile` the marks are dropped as dead code, unless `frontends.fx` records it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypeVar

import torch

from magneton_dist.errors import InputError
from magneton_dist.tracer.model import local

_LIBRARY = torch.library.Library("magneton_dist", "FRAGMENT")
for _name in ("enter", "leave"):
    _LIBRARY.define(f"{_name}(str name, Tensor[] tensors, str[] names) -> ()")
    _LIBRARY.impl(_name, lambda name, tensors, names: None, "CompositeExplicitAutograd")
enter = torch.ops.magneton_dist.enter.default
leave = torch.ops.magneton_dist.leave.default

Function = TypeVar("Function", bound=Callable[..., Any])
Named = list[tuple[str, torch.Tensor]]


class annotate:
    """Make a function, or a block, one operator of the record.

        @magneton_dist.annotate("rotary", inputs=("q", "k", "angles"), outputs=("q", "k"))
        def rotary(q, k, angles): ...

        with magneton_dist.annotate("rotary", inputs={"q": q, "k": k}) as rotary:
            q, k = ...
            rotary.returns(q=q, k=k)

    The operator is called ``annotated.rotary``. What it reads besides its inputs (weights, constants), and what
    it leaves behind besides its outputs (saved for the backward pass, written in place), is kept, unnamed. Its
    backward pass is not part of it. The outermost of nested annotations counts.

    Args:
        name: of the operator.
        inputs: of a function, the names of the arguments to show (None: all that hold tensors); of a block, the
            tensors by name.
        outputs: of a function, the names of its results; None: ``output``, numbered when there are several.

    Raises:
        InputError: `name` is empty, `inputs` or `outputs` is one string, or `inputs` names no argument of the function.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Sequence[str] | Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        if not name:
            raise InputError("an annotation needs a name", where="annotate")
        for what, given in (("inputs", inputs), ("outputs", outputs)):
            if isinstance(given, str):
                raise InputError(f"{what} is one string", where=f"annotate({name!r})", do=f"give a tuple: ({given!r},)")
        self.name = name
        self._inputs = inputs
        self._outputs = outputs
        self._marked = False
        self._returned: Named = []

    def __call__(self, function: Function) -> Function:
        """Decorate `function`."""
        parameters = inspect.signature(function).parameters
        names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        open_ended = [p.name for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        inputs = None if self._inputs is None else tuple(self._inputs)
        unknown = sorted(set(inputs or ()) - set(parameters))
        if unknown and not open_ended:
            raise InputError(
                f"{function.__qualname__} has no argument {unknown[0]!r}",
                where=f"annotate({self.name!r})",
                do=f"name some of {', '.join(parameters)}",
            )
        label, outputs = self.name, self._outputs

        @functools.wraps(function)
        def annotated(*args: Any, **kwargs: Any) -> Any:
            if not _recorded():
                return function(*args, **kwargs)
            given: Named = []
            for position, argument in enumerate(args):
                name = names[position] if position < len(names) else f"{open_ended[0]}.{position - len(names)}"
                if inputs is None or name in inputs:
                    given += _tensors(name, argument)
            for name, argument in kwargs.items():
                if inputs is None or name in inputs:
                    given += _tensors(name, argument)
            _mark(enter, label, given)
            result = None
            try:
                result = function(*args, **kwargs)
            finally:
                _mark(leave, label, _results(result, outputs))
            _check_outputs(label, result, outputs)
            return result

        return annotated  # type: ignore[return-value]

    def __enter__(self) -> annotate:
        self._returned = []
        self._marked = _recorded()
        if self._marked:
            inputs = self._inputs if isinstance(self._inputs, Mapping) else {}
            _mark(enter, self.name, [pair for name, given in inputs.items() for pair in _tensors(name, given)])
        return self

    def returns(self, **outputs: Any) -> None:
        """Name what the block computes; call it as the last thing in the block."""
        self._returned = [pair for name, output in outputs.items() for pair in _tensors(name, output)]

    def __exit__(self, *_: object) -> None:
        if self._marked:
            _mark(leave, self.name, self._returned)
        self._returned = []


def _recorded() -> bool:
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def _mark(operator: Any, label: str, named: Named) -> None:
    try:
        operator(label, [local(tensor) for _, tensor in named], [name for name, _ in named])
    except Exception as error:
        # A tensor subclass or a transform that refuses operators it does not know must not stop the job.
        if not torch.compiler.is_compiling():
            warnings.warn(f"magneton_dist.annotate({label!r}) leaves no mark: {error}", stacklevel=4)


def _tensors(name: str, given: Any) -> Named:
    if isinstance(given, torch.Tensor):
        return [(name, given)]
    if isinstance(given, (list, tuple)):
        return [pair for i, item in enumerate(given) for pair in _tensors(f"{name}.{i}", item)]
    if isinstance(given, dict):
        return [pair for key, item in given.items() for pair in _tensors(f"{name}.{key}", item)]
    return []


def _results(result: Any, outputs: Sequence[str] | None) -> Named:
    if outputs is None:
        return _tensors("output", result)
    return [pair for name, item in zip(outputs, _several(result)) for pair in _tensors(name, item)]


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (list, tuple)) else [result]


def _check_outputs(label: str, result: Any, outputs: Sequence[str] | None) -> None:
    """Warn of names that are too many or too few; the job goes on."""
    if outputs is not None and len(outputs) != len(_several(result)) and not torch.compiler.is_compiling():
        warnings.warn(
            f"magneton_dist.annotate({label!r}) names {len(outputs)} outputs of a function that returns "
            f"{len(_several(result))}: the record has those that both have",
            stacklevel=3,
        )
