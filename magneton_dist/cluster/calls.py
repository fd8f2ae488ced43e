"""Calls to actors: sent without waiting, and turned into events when they come back or their actor dies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from magneton_dist.cluster.crew import Crew
from magneton_dist.cluster.events import Actor, CallFailed, Event, Lost, Place
from magneton_dist.errors import ClusterError, MagnetonError

_ANSWER_S = 10.0  # for short questions whose answer is waited for


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    actor: Actor
    then: Callable[[Any], None]
    place: Place | None


class Calls:
    """Everything that is under way to the actors of `crew`; failures are appended to `happened`."""

    def __init__(self, crew: Crew, happened: deque[Event]) -> None:
        self._crew = crew
        self._happened = happened
        self._open: dict[Any, _Call] = {}

    def send(
        self, method: str, actor: Actor, then: Callable[[Any], None], *args: Any, about: Place | None = None
    ) -> None:
        """Call `method` of `actor`; its value goes to `then`, an exception becomes `CallFailed` about `about`."""
        handle = self._crew.handle(actor)
        if handle is None:
            self._happened.append(Lost(actor, "it died earlier"))
        else:
            self.watch(getattr(handle, method).remote(*args), method, actor, then, about)

    def watch(
        self, reference: Any, name: str, actor: Actor, then: Callable[[Any], None], about: Place | None = None
    ) -> None:
        """Wait for a call that was made already."""
        self._open[reference] = _Call(name, actor, then, about)

    def wait(self, seconds: float) -> None:
        """Until a call comes back, at most `seconds`; takes all that have."""
        if not self._open:
            time.sleep(seconds)
            return
        references = list(self._open)
        if not ray.wait(references, num_returns=1, timeout=seconds)[0]:
            return
        for reference in ray.wait(references, num_returns=len(references), timeout=0)[0]:
            call = self._open.pop(reference, None)
            if call is None:  # of an actor that an earlier one of these has shown to be dead
                continue
            try:
                value = ray.get(reference)
            except RayTaskError as error:
                self._happened.append(CallFailed(call.name, as_ours(error.cause, call.name), call.place))
            except RayError as error:
                self.lose(call.actor, first_line(error))
            else:
                call.then(value)

    def outstanding(self) -> set[tuple[str, Actor]]:
        """Method and actor of the calls that have not come back."""
        return {(call.name, call.actor) for call in self._open.values()}

    def ask(self, actor: Actor, method: str, *args: Any, limit_s: float = _ANSWER_S) -> Any:
        """A short question, answered now.

        Raises:
            MagnetonError: what the actor raised, or that it is gone.
        """
        handle = self._crew.handle(actor)
        if handle is None:
            raise ClusterError("it died earlier", where=str(actor))
        try:
            return ray.get(getattr(handle, method).remote(*args), timeout=limit_s)
        except RayTaskError as error:
            raise as_ours(error.cause, method) from error
        except RayError as error:
            self.lose(actor, first_line(error))
            raise ClusterError(first_line(error), where=str(actor)) from error

    def lose(self, actor: Actor, why: str) -> None:
        """`actor` died, or cannot be reached and must not go on in secret."""
        handle = self._crew.handle(actor)
        if handle is not None:
            ray.kill(handle)
            self.forget(actor)
            self._happened.append(Lost(actor, why))

    def forget(self, actor: Actor) -> None:
        """Expect nothing from `actor` any more."""
        self._crew.drop(actor)
        self._open = {reference: call for reference, call in self._open.items() if call.actor != actor}

    def clear(self) -> None:
        """Expect nothing from anybody."""
        self._open.clear()


def as_ours(error: BaseException, where: str) -> MagnetonError:
    """`error` as one of ours; what others raise keeps its type's name."""
    if isinstance(error, MagnetonError):
        return error
    return ClusterError(f"{type(error).__name__}: {first_line(error)}", where=where)


def first_line(error: BaseException) -> str:
    """The first line of what `error` says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
