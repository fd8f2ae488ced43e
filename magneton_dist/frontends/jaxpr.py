"""A JAX callable: its jaxpr, evaluated equation by equation.

Functions that are called (jit, custom_jvp, checkpoint, ...) are entered, of a cond the branch that is taken is;
scan and while are entered when they run few equations in all, and are one operator otherwise. The operators
are those that the program states: XLA fuses them when it compiles the whole, so the times here, of each
equation alone, say less than those of a torch record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from magneton_dist.frontends.arrays import as_tensor
from magneton_dist.frontends.program import Frame, Program
from magneton_dist.tracer.arguments import plain
from magneton_dist.tracer.spool import Spool

VERSIONS = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

SMALL = 256  # equations that a loop may run in all to be entered

# Where the equations that call a function keep it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
_FOREIGN = tuple(f"{Path(package.__file__).parent}/" for package in (jax, jaxlib))


class _Known(NamedTuple):
    """What a variable is bound to, and the id of that value; None for what is no tensor of numbers."""

    array: Any
    value: int | None


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], spool: Spool) -> None:
    """Trace ``function(*args, **kwargs)``, evaluate its jaxpr once and write its rows into `spool`."""
    closed = jax.make_jaxpr(function)(*args, **kwargs)
    program = Program(spool)
    evaluation = _Evaluation(program)
    leaves = [jax.numpy.asarray(leaf) for leaf in jax.tree_util.tree_leaves((args, kwargs))]
    given = [evaluation.known(leaf, "input") for leaf in leaves]
    evaluation.run(closed, given)
    program.finish()
    spool.put("knob", "jax.default_backend", jax.default_backend())
    for name, setting in jax.config.values.items():
        if isinstance(setting, (bool, int, float, str)):
            spool.put("knob", f"jax.{name}", str(plain(setting)))


class _Evaluation:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._frames: list[Frame] = []

    def known(self, array: Any, role: str) -> _Known:
        """`array` with a value of its own in the record."""
        dtype = getattr(array, "dtype", None)
        if dtype is None:
            return _Known(array, None)
        numbers = jax.random.key_data(array) if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else array
        tensor = as_tensor(np.asarray(numbers))
        return _Known(array, None if tensor is None else self._program.value(tensor, role=role, dtype=str(dtype)))

    def run(self, closed: ClosedJaxpr, given: Sequence[_Known]) -> list[_Known]:
        """Evaluate `closed` on `given`."""
        return self._run(closed.jaxpr, [self.known(constant, "buffer") for constant in closed.consts], given)

    def _run(self, jaxpr: Jaxpr, constants: Sequence[_Known], given: Sequence[_Known]) -> list[_Known]:
        bound = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))

        def read(atom: Any) -> _Known:
            return _Known(atom.val, None) if isinstance(atom, Literal) else bound[atom]

        last_use = {atom: n for n, equation in enumerate(jaxpr.eqns) for atom in _variables(equation.invars)}
        for atom in _variables(jaxpr.outvars):
            last_use[atom] = len(jaxpr.eqns)
        for n, equation in enumerate(jaxpr.eqns):
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            bound.update(zip(equation.outvars, results, strict=True))
            for atom in {*_variables(equation.invars), *equation.outvars}:
                if last_use.get(atom, n) <= n:
                    del bound[atom]
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, given: list[_Known]) -> list[_Known]:
        # What JAX's own functions call has no frames but JAX's: it stands where they were called.
        caller, self._frames = self._frames, _frames(equation) or self._frames
        results = self._enter(equation, given)
        self._frames = caller
        return results

    def _enter(self, equation: JaxprEqn, given: list[_Known]) -> list[_Known]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            inner = params[_CALLS[name]]
            return self._run(inner, [], given) if isinstance(inner, Jaxpr) else self.run(inner, given)
        if name == "cond":
            taken = min(max(int(given[0].array), 0), len(params["branches"]) - 1)
            return self.run(params["branches"][taken], given[1:])
        if name == "scan" and params["length"] * _size(params["jaxpr"]) <= SMALL:
            return self._scan(equation, given)
        if name == "while" and _trips(params, given) * _size(params["cond_jaxpr"], params["body_jaxpr"]) <= SMALL:
            return self._while(params, given)
        return self._bind(equation, given)

    def _bind(self, equation: JaxprEqn, given: list[_Known]) -> list[_Known]:
        primitive = equation.primitive
        params = primitive.get_bind_params(equation.params)

        def call() -> Any:
            with equation.ctx.manager:
                return jax.block_until_ready(primitive.bind(*(known.array for known in given), **params))

        start_ns = end_ns = None
        result = call()
        if not equation.effects:  # the first call has compiled the operator: the second one tells its time
            start_ns = time.monotonic_ns()
            result = call()
            end_ns = time.monotonic_ns()
        arguments = _arguments(given, equation.params)
        return self._write(equation, primitive.name, given, result, arguments, start_ns, end_ns)

    def _write(
        self,
        equation: JaxprEqn,
        name: str,
        given: Sequence[_Known],
        result: Any,
        arguments: list[Any],
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> list[_Known]:
        arrays = result if isinstance(result, (list, tuple)) else [result]
        results = [self.known(array, "activation") for array in arrays]
        self._program.operator(
            f"jax.{name}",
            inputs=[known.value for known in given if known.value is not None],
            outputs=[known.value for known in results if known.value is not None],
            arguments=arguments,
            frames=self._frames,
            # Transposed is what the chain rule adds: the gradients.
            phase="backward" if "transpose(" in str(equation.source_info.name_stack) else "forward",
            start_ns=start_ns,
            end_ns=end_ns,
        )
        return results

    def _scan(self, equation: JaxprEqn, given: list[_Known]) -> list[_Known]:
        params = equation.params
        n_constants, n_carried, length = params["num_consts"], params["num_carry"], params["length"]
        constants, state = given[:n_constants], given[n_constants : n_constants + n_carried]
        sequences, collected = given[n_constants + n_carried :], []
        places = range(length - 1, -1, -1) if params["reverse"] else range(length)
        for place in places:
            items = [self._one(equation, sequence, place) for sequence in sequences]
            results = self.run(params["jaxpr"], [*constants, *state, *items])
            state = results[:n_carried]
            collected.append(results[n_carried:])
        if params["reverse"]:
            collected.reverse()
        stacked = [self._together(equation, list(items)) for items in zip(*collected, strict=True)]
        return [*state, *stacked]

    def _one(self, equation: JaxprEqn, sequence: _Known, place: int) -> _Known:
        arguments = [*_arguments([sequence], {}), 0, place]
        return self._write(equation, "select", [sequence], sequence.array[place], arguments)[0]

    def _together(self, equation: JaxprEqn, items: list[_Known]) -> _Known:
        result = jax.numpy.stack([item.array for item in items])
        return self._write(equation, "stack", items, result, _arguments(items, {}))[0]

    def _while(self, params: dict[str, Any], given: list[_Known]) -> list[_Known]:
        of_condition, of_body, state = _loop(params, given)
        while self.run(params["cond_jaxpr"], [*of_condition, *state])[0].array:
            state = self.run(params["body_jaxpr"], [*of_body, *state])
        return state


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _size(*closed: ClosedJaxpr) -> int:
    """Equations in all, those of called functions and of loops' bodies counted once."""
    return sum(1 + _size(*_inner(equation)) for jaxpr in closed for equation in jaxpr.eqns)


def _inner(equation: JaxprEqn) -> Iterator[Any]:
    for param in equation.params.values():
        for item in param if isinstance(param, (list, tuple)) else [param]:
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield item


def _loop(params: dict[str, Any], given: list[_Known]) -> tuple[list[_Known], list[_Known], list[_Known]]:
    """What only the condition reads, what only the body reads, and the state."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return given[:first], given[first:second], given[second:]


def _trips(params: dict[str, Any], given: list[_Known]) -> int:
    """How often a while loop runs its body, found out by running it."""
    of_condition, of_body, state = ([known.array for known in part] for part in _loop(params, given))
    condition, body = jaxpr_as_fun(params["cond_jaxpr"]), jaxpr_as_fun(params["body_jaxpr"])
    count, _ = lax.while_loop(
        lambda carried: condition(*of_condition, *carried[1])[0],
        lambda carried: (carried[0] + 1, body(*of_body, *carried[1])),
        (0, state),
    )
    return int(count)


def _arguments(given: Sequence[_Known], params: dict[str, Any]) -> list[Any]:
    arguments = [
        _json(known.array) if known.value is None else {"v": known.value} for known in given
    ]
    settings = [{"name": name, "value": _json(param)} for name, param in params.items() if param is not None]
    return [*arguments, *settings]


def _json(param: Any) -> Any:
    if isinstance(param, (np.generic, np.ndarray)):
        return plain(param.item()) if param.size == 1 else {"type": type(param).__name__}
    if isinstance(param, (list, tuple)):
        return [_json(item) for item in param]
    if isinstance(param, (ClosedJaxpr, Jaxpr)):
        return {"equations": _size(param)}
    if isinstance(param, np.dtype):
        return {"dtype": param.name}
    if callable(param):
        return {"type": type(param).__name__}
    return plain(param) if isinstance(param, (bool, int, float, complex)) else plain(str(param))


def _frames(equation: JaxprEqn) -> list[Frame]:
    """Frames of the equation's source, innermost first, without JAX's own."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else []
    found = [(frame.file_name, frame.line_num, frame.function_name) for frame in frames]
    return [frame for frame in found if not frame[0].startswith(_FOREIGN)]
