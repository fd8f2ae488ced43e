"""What the operator asks of torch's settings, beside what flipping shows: which factor to try first, and who agrees."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from magneton_dist.diagnosis.factors import Factor
from magneton_dist.diagnosis.key_variable import KeyVariable
from magneton_dist.diagnosis.knob_map import KnobMap, knob_map
from magneton_dist.diagnosis.read_set import TOLD
from magneton_dist.diagnosis.trial import Trial

READ_SET, MAP = "read-set", "knob map"


class Layers:
    """Read-sets of a call in both worlds, and the map from settings to what is read.

    Attributes:
        differing: getter, or what a library is told by -> answers in A and in B, where they differ; None: not asked.
        lines: what the layers say, in words; also that one could not run, and why.
    """

    def __init__(self, trial: Trial, operator: str, names: tuple[str, str]) -> None:
        self._factors = trial.factors
        self.differing: dict[str, tuple[int | None, int | None]] = {}
        self.lines: list[str] = []
        self._map: KnobMap | None = None
        a, error = trial.read_set(frozenset())
        b, other = trial.read_set(frozenset(range(len(trial.factors))))
        self.ran = not (error or other)
        if not self.ran:
            self.lines.append(f"{READ_SET}: could not run: {error or other}")
            return
        self.differing = {g: (a.get(g), b.get(g)) for g in sorted(a | b) if a.get(g) != b.get(g)}
        if not self.differing:
            settings = a.keys() - {*TOLD}
            asked = f"asks {len(settings)} of torch's settings" if settings else "asks none of torch's settings"
            self.lines.append(f"{READ_SET}: {operator} {asked}, with the same answers in both variants' worlds")
            return
        libraries = self.differing.keys() - self._settings
        for what, of in (("asks at::Context", self._settings), ("tells its libraries", libraries)):
            told = "; ".join(f"{g} is {_shown(x)} as in {names[0]}, {_shown(y)} as in {names[1]}" for g, (x, y) in
                             self.differing.items() if g in of)  # fmt: skip
            if told:
                self.lines.append(f"{READ_SET}: {operator} {what}: {told}")
        if any(factor.kind == "setting" for factor in self._factors):
            self._map = knob_map(trial, version("torch"))

    def order(self) -> list[int]:
        """Factors by how likely they are the cause: settings that are read with another answer first."""
        if not self.ran:
            return list(range(len(self._factors)))
        return sorted(range(len(self._factors)), key=lambda n: (self._rank(self._factors[n]), n))

    def agreeing(self, chosen: Sequence[Factor]) -> list[str]:
        """Layers that point at these factors, too."""
        settings = [factor for factor in chosen if factor.kind == "setting"]
        if not self.ran:
            return []
        if not settings:  # an argument or a variable: no setting's answer may differ
            return [] if self._settings else [READ_SET]
        if self._map is None or not all(self._mapped(factor) for factor in settings):
            return []
        return [READ_SET, MAP]

    def judged(self, key: KeyVariable, chosen: Sequence[Factor]) -> bool | None:
        """Does the key variable point at these factors, too? None: it does not say."""
        kinds = {factor.kind for factor in chosen}
        if key.kind == "memory":  # of an argument, or what torch has read before
            return True if kinds == {"argument"} else None
        if key.kind != "setting" or kinds == {"environment"} or (self._map is None and "setting" in kinds):
            return None
        return any(key.getter in self._getters(factor) for factor in chosen)

    @property
    def _settings(self) -> set[str]:
        """Getters of torch's settings whose answers differ."""
        return self.differing.keys() - {*TOLD}

    def _rank(self, factor: Factor) -> int:
        if factor.kind == "setting":
            return 0 if self._mapped(factor) else 2
        return 1

    def _mapped(self, factor: Factor) -> bool:
        """Does this setting, or one that it brings about, change an answer that differs?"""
        return any(getter in self.differing for getter in self._getters(factor))

    def _getters(self, factor: Factor) -> list[str]:
        """Getters whose answers it changes, as far as they are known."""
        known = {} if self._map is None else self._map.getters
        names = [factor.name, *(name for name, _, _ in factor.with_it)]
        return [getter for name in names for getter in known.get(name, ())]


def _shown(answer: int | None) -> str:
    return "not asked" if answer is None else str(answer)
