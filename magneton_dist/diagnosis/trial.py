"""One operator call in the worlds between two variants: which kernels it runs, and how long it takes.

World A is variant A's settings, environment and arguments; flipping a factor gives it the value of variant B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from magneton_dist.diagnosis.calls import Call
from magneton_dist.diagnosis.factors import Factor, is_setting
from magneton_dist.diagnosis.laboratory import LIMIT_S, Laboratory
from magneton_dist.diagnosis.prove import Flipped
from magneton_dist.diagnosis.snapshot import UNSET

ROUNDS = 5  # fresh processes in which either variant is timed, in turn
FLIPPED_ROUNDS = 3
LEAST_RATIO = 1.1  # of times; as of regions
NOTHING: Mapping[str, Any] = {
    "settings": {}, "flips": [], "read": [], "getters": [], "call": None, "signature": False, "seconds": False,
    "read_set": False, "launches": False, "steps": None, "slice": None, "repeat_s": None,
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """Kernels of a call; `error` says why there are none, `lost` that the process was lost, not the call refused."""

    operators: tuple[str, ...] = ()
    primitives: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    error: str = ""
    lost: bool = False


@dataclass(frozen=True)
class Side:
    """One variant's call: its recorded settings and the operator call."""

    settings: Mapping[str, str]
    call: Call


class Trial:
    """Asks a laboratory how one call behaves.

    Args:
        laboratory: where fresh processes come from.
        a, b: the call in either variant.
        factors: what differs.
        environment: of variant A.

    Attributes:
        refused: settings that the torch of fresh processes does not take; they were not flipped.
    """

    def __init__(
        self, laboratory: Laboratory, a: Side, b: Side, factors: Sequence[Factor],
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._laboratory = laboratory
        self._a, self._b = a, b
        self._environment = environment
        self._settings = {name: value for name, value in a.settings.items() if is_setting(name)}
        self.factors = list(factors)
        self.refused: set[str] = set()

    def brings(self, factor: Factor, names: Sequence[str]) -> dict[str, str]:
        """What the settings `names` are in world A once this one is set as in B."""
        wanted = {"flips": [(factor.name, factor.values[1])], "read": list(names)}
        found: dict[str, str] = self._ask(wanted).get("read", {})
        return found

    def signature(self, flipped: Flipped) -> Signature:
        """Kernels with these factors flipped."""
        found = self._world(flipped, "signature")
        if "error" in found:
            return Signature(error=found["error"], lost="lost" in found)
        layers = found["signature"]
        return Signature(tuple(layers["operators"]), tuple(layers["primitives"]), tuple(layers["kernels"]))

    def behaves(self, flipped: Flipped) -> Signature | None:
        """The same, None where it is not known."""
        found = self.signature(flipped)
        return None if found.lost else found

    def seconds(self, flipped: Flipped) -> float | None:
        """Median time of a call in one fresh process; None where it failed."""
        found = self._world(flipped, "seconds")
        return None if "error" in found else float(found["seconds"])

    def repeated(self, flipped: Flipped, seconds: float) -> dict[str, Any]:
        """Repeat the call for so long in one fresh process: fields of a span under `repeated`; else `error`."""
        return self._world(flipped, "repeat_s", seconds, LIMIT_S + seconds)

    @property
    def gpu(self) -> bool:
        """Some tensor of the call is on a GPU."""
        return any(tensor.device.startswith("cuda") for tensor in self._a.call.tensors)

    def read_set(self, flipped: Flipped) -> tuple[dict[str, int], str]:
        """Getters of torch's settings that the call asks, and what they answer; else why that is not known."""
        found = self._world(flipped, "read_set")
        return found.get("read_set", {}), found.get("error", "")

    def native(self, flipped: Flipped, what: str, question: object, limit_s: float) -> dict[str, Any]:
        """What one of the layers that read machine code says, under `what`: launches, steps or slice; else `error`."""
        return self._world(flipped, what, question, limit_s)

    def getters(self, names: Sequence[str], flips: Sequence[tuple[str, str]] = ()) -> dict[str, int] | None:
        """What these getters answer in world A with settings changed; None where one of them ends the process."""
        return self._ask({"flips": list(flips), "getters": list(names)}).get("getters")

    @property
    def known_getters(self) -> list[str]:
        """Getters that fresh processes have."""
        return list(self._laboratory.greeting(self._environment).get("getters", ()))

    @property
    def switchable(self) -> dict[str, str]:
        """Torch's settings and their values in world A."""
        return dict(self._settings)

    def _world(
        self, flipped: Flipped, wanted: str, question: object = True, limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """What a fresh process says of the call with these factors flipped."""
        call, flips, environment = self._a.call, [], dict(self._environment)
        for number in sorted(flipped):
            factor = self.factors[number]
            if factor.kind == "argument":
                call = factor.flipped(call, self._b.call)
            elif factor.kind == "setting":
                flips += [(factor.name, factor.values[1]), *((name, b) for name, _, b in factor.with_it)]
            elif factor.values[1] == UNSET:
                environment.pop(factor.name, None)
            else:
                environment[factor.name] = factor.values[1]
        found = self._ask({"flips": flips, "call": call.described(), wanted: question}, environment, limit_s)
        self.refused |= set(found.get("refused", ()))
        return found

    def _ask(
        self, wanted: Mapping[str, Any], environment: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        question = {**NOTHING, "settings": self._settings, **wanted}
        return self._laboratory.ask(self._environment if environment is None else environment, question, limit_s)


def together(trial: Trial, factors: Sequence[Factor]) -> list[Factor]:
    """`factors`, those settings put together that one of them brings about: many names, one statement."""
    settings = {factor.name: factor for factor in factors if factor.kind == "setting"}
    brings: dict[str, set[str]] = {}
    for name, factor in settings.items():
        now = trial.brings(factor, list(settings))
        brings[name] = {name} | {other for other in settings if now.get(other) == settings[other].values[1]}
    roots: list[Factor] = []
    covered: set[str] = set()
    # the one that brings most about; of equals, the one with the plainest name
    for name in sorted(settings, key=lambda n: (-len(brings[n]), "._" in n, n.count("."), n)):
        if name not in covered:
            rest = sorted(brings[name] - covered - {name})
            roots.append(replace(settings[name], with_it=tuple((n, *settings[n].values) for n in rest)))
            covered |= brings[name]
    return roots + [factor for factor in factors if factor.kind != "setting"]


def interleaved_seconds(trial: Trial, rounds: int) -> tuple[list[float], list[float]]:
    """Medians of a call in worlds A and B, each of `rounds` fresh processes in turn; fewer where some failed."""
    worlds: tuple[Flipped, Flipped] = frozenset(), frozenset(range(len(trial.factors)))
    times: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            taken = trial.seconds(worlds[side])
            if taken is not None:
                times[side].append(taken)
    return times


class Timing:
    """Tells by time in which of the two worlds a call behaves: only where they are apart for certain.

    Attributes:
        apart: every process of one world took longer than every process of the other, by `LEAST_RATIO` in the median.
        seconds: medians of A and of B.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        times = interleaved_seconds(trial, ROUNDS)
        self._known: dict[Flipped, str] = {}
        self.apart = False
        self.seconds: tuple[float, float] | None = None
        if all(len(of_side) == ROUNDS for of_side in times):
            a, b = self.seconds = median(times[0]), median(times[1])
            self._fast, self._slow = ("a", "b") if a < b else ("b", "a")
            fast, slow = times if a < b else times[::-1]
            self.apart = max(fast) < min(slow) and max(a, b) >= LEAST_RATIO * min(a, b)
            self._border = (max(fast) * min(slow)) ** 0.5
            self._known = {frozenset(): "a", frozenset(range(len(trial.factors))): "b"}

    def behaves(self, flipped: Flipped) -> str | None:
        """The world, a or b, in which the call takes as long as in this one; None where it is not clear."""
        if flipped in self._known:
            return self._known[flipped]
        times = [self._trial.seconds(flipped) for _ in range(FLIPPED_ROUNDS)]
        sides = {self._slow if taken is None or taken > self._border else self._fast for taken in times}
        return sides.pop() if len(sides) == 1 and None not in times else None
