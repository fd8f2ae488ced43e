"""A TensorFlow callable: its graph, run once with every intermediate fetched.

Functions that are called become part of the graph; `tf.cond`, `tf.while_loop` and what is made of them stay
one operator. Reading a variable is no operator, and small constants (shapes, axes, factors) stand in the
arguments, as they do where Python computes them. The graph runs as a whole: operators have no times. Writes
to variables that no fetched value waits for do not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from magneton_dist.errors import InputError
from magneton_dist.frontends.arrays import as_tensor
from magneton_dist.frontends.program import Frame, Program
from magneton_dist.tracer.arguments import cut, plain
from magneton_dist.tracer.spool import Spool

VERSIONS = {"tensorflow": str(tf.__version__)}

LITERAL = 8  # elements that a constant in the arguments has at most

_FOREIGN = f"{Path(tf.__file__).parent}/"
# What holds a value that is there already, or none.
_SOURCES = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "VarHandleOp", "NoOp"})
_SIMPLE = (bool, int, float, bytes)
_GRADIENTS = ("gradient_tape/", "gradients/")


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], spool: Spool) -> None:
    """Trace ``function(*args, **kwargs)``, run its graph once and write its rows into `spool`.

    Raises:
        InputError: Python decides by the value of a tensor, which is not in the graph.
    """
    leaves = tf.nest.flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, (tf.Tensor, np.ndarray, np.generic))]
    tensors = [tf.convert_to_tensor(leaves[n]) for n in places]

    def flat(*given: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        its_args, its_kwargs = tf.nest.pack_sequence_as((args, kwargs), filled)
        return function(*its_args, **its_kwargs)

    wrapped = _trace(flat, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])
    fetched = [output for operation in wrapped.graph.get_operations() for output in operation.outputs]
    fetched = [output for output in fetched if output.dtype.is_numpy_compatible and output.dtype != tf.string]
    captured = {id(internal) for _, internal in wrapped.graph.captures}
    feeds = [tensor for tensor in wrapped.inputs if id(tensor) not in captured]
    computed = wrapped.prune(feeds, fetched)(*tensors)
    _Graph(wrapped, dict(zip(map(id, fetched), computed, strict=True)), spool).write()


def _trace(function: Callable[..., Any], specs: list[Any]) -> Any:
    """The graph of `function`, with the functions that it calls."""
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # a called function runs its Python code, here into the graph
    try:
        return tf.compat.v1.wrap_function(function, specs)
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise InputError(
            f"TensorFlow cannot trace it: {str(error).splitlines()[0]}",
            where="record",
            do="use tf.cond or tf.while_loop where Python decides by a tensor",
        ) from error
    finally:
        tf.config.run_functions_eagerly(eagerly)


class _Graph:
    def __init__(self, wrapped: Any, computed: dict[int, Any], spool: Spool) -> None:
        self._graph = wrapped.graph
        self._computed = computed  # by the id of the graph's tensor
        self._program = Program(spool)
        self._values: dict[int, int] = {}
        variables = {id(variable.handle): variable for variable in wrapped.variables}
        self._variables = {
            id(internal): variables[id(external)]
            for external, internal in self._graph.captures
            if id(external) in variables
        }

    def write(self) -> None:
        """Write every operation."""
        for operation in self._graph.get_operations():
            role, slot = self._role(operation)
            for output in operation.outputs:
                self._add(output, role, slot)
            if operation.type not in _SOURCES:
                self._operator(operation)
        self._program.finish()

    def _role(self, operation: Any) -> tuple[str, str | None]:
        if operation.type == "ReadVariableOp":
            variable = self._variables.get(id(operation.inputs[0]))
            if variable is not None:
                return "parameter" if variable.trainable else "buffer", variable.name.removesuffix(":0")
        if operation.type.startswith("Placeholder"):
            return "input", None
        return "buffer" if operation.type == "Const" else "activation", None

    def _add(self, output: Any, role: str, slot: str | None) -> None:
        if id(output) not in self._computed or _literal(output) is not None:
            return
        tensor = as_tensor(self._computed[id(output)].numpy())
        if tensor is not None:
            self._values[id(output)] = self._program.value(tensor, role=role, slot=slot)

    def _operator(self, operation: Any) -> None:
        given = [self._values[id(tensor)] for tensor in operation.inputs if id(tensor) in self._values]
        self._program.operator(
            f"tf.{operation.type}",
            inputs=given,
            outputs=[self._values[id(tensor)] for tensor in operation.outputs if id(tensor) in self._values],
            arguments=[*map(self._argument, operation.inputs), *_attributes(operation)],
            frames=_frames(operation),
            phase="backward" if operation.name.startswith(_GRADIENTS) else "forward",
        )

    def _argument(self, tensor: Any) -> Any:
        if id(tensor) in self._values:
            return {"v": self._values[id(tensor)]}
        literal = _literal(tensor)
        return {"type": tensor.dtype.name} if literal is None else _json(literal.tolist())


def _literal(tensor: Any) -> Any:
    """The elements of a small constant, else None."""
    if tensor.op.type != "Const" or (tensor.shape.num_elements() or 0) > LITERAL:
        return None
    return tf.make_ndarray(tensor.op.node_def.attr["value"].tensor)


def _json(items: Any) -> Any:
    if isinstance(items, list):
        return [_json(item) for item in items]
    return plain(items.decode(errors="replace") if isinstance(items, bytes) else items)


def _attributes(operation: Any) -> Iterator[dict[str, Any]]:
    for name, attribute in sorted(operation.node_def.attr.items()):
        if not name.startswith("_"):
            yield {"name": name, "value": _attribute(attribute)}


def _attribute(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind == "type":
        return {"dtype": tf.dtypes.as_dtype(attribute.type).name}
    if kind == "list":
        listed = [item for _, items in attribute.list.ListFields() for item in items]
        return cut([_json(item) for item in listed if isinstance(item, _SIMPLE)])
    value = getattr(attribute, kind) if kind else None
    return _json(value) if isinstance(value, _SIMPLE) else {"type": kind}


def _frames(operation: Any) -> list[Frame]:
    """Frames of the operation's source, innermost first, without TensorFlow's own."""
    found = [(frame.filename, frame.lineno, frame.name) for frame in operation.traceback]
    return [frame for frame in reversed(found) if not frame[0].startswith(_FOREIGN)]
