"""The cause of a difference between two variants' operators: which setting, variable or argument makes it, proved.

Operators that both variants call are made again in fresh processes, with every difference between the variants
flipped on its own: first it counts which kernels run, then how long they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median
from typing import Literal

from msgspec import structs

from magneton_dist.diagnosis.factors import (
    MOST_TYPED,
    OPTIMIZER,
    Factor,
    argument_factors,
    environment_of,
    setting_factors,
)
from magneton_dist.diagnosis.fixes import fix_text, statement
from magneton_dist.diagnosis.joules import flip_joules
from magneton_dist.diagnosis.key_variable import KEY_VARIABLE, key_variable
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError
from magneton_dist.diagnosis.layers import Layers
from magneton_dist.diagnosis.optimizers import GROUP
from magneton_dist.diagnosis.pairs import Pair, candidates
from magneton_dist.diagnosis.paths import parting
from magneton_dist.diagnosis.prove import Proof, Verdict, prove
from magneton_dist.diagnosis.recorded import Recorded
from magneton_dist.diagnosis.snapshot import UNSET
from magneton_dist.diagnosis.trial import FLIPPED_ROUNDS, Side, Signature, Timing, Trial, interleaved_seconds, together
from magneton_dist.records.audit import Cause

MOST_PAIRS = 4  # operator calls that are made again
MOST_TIMED = 2
BY_PRIMITIVES = ("kernels", "primitives", "operators")
BY_OPERATORS = ("kernels", "operators", "primitives")
MOST_SHOWN = 4  # kernels that a line names
Say = Callable[[str], None]


@dataclass
class Diagnosis:
    """What came of looking for a cause.

    Attributes:
        proof: none, consistent or proved.
        cause: None when there is none.
        fix: what to type; empty without a cause.
        lines: what was tried, and what came of it, in words.
    """

    proof: Literal["none", "consistent", "proved"] = "none"
    cause: Cause | None = None
    fix: str = ""
    lines: list[str] = field(default_factory=list)


class Investigation:
    """Looks for what makes the operators of two variants differ.

    Args:
        sides: of the finding, in either order.
        cheap: name of the variant that needs less; None: the one whose call takes less time in a fresh process.
        laboratory: where fresh processes come from.
        base: environment that both variants started from.
        prefixes: of the environment variables that a record holds.
        where: line of source, for the fix.
        meter: of the record, as a configuration names it; empty: joules of a cause are not looked for.
        say: is told what happens.
    """

    def __init__(
        self, sides: tuple[Recorded, Recorded], cheap: str | None, laboratory: Laboratory, base: Mapping[str, str],
        prefixes: tuple[str, ...], where: str = "", say: Say = lambda _: None, meter: str = "",
    ) -> None:  # fmt: skip
        self._sides = sides
        self._names = (sides[0].name, sides[1].name)
        self._cheap = cheap
        self._laboratory = laboratory
        self._base, self._prefixes = base, prefixes
        self._where = where
        self._say = say
        self._meter = meter
        self.found = Diagnosis()

    def run(self) -> Diagnosis:
        """Look; what was found so far is in `found` when time is over.

        Raises:
            OutOfTimeError: the laboratory's time is over.
        """
        settings, fixed = setting_factors(self._sides[0].settings, self._sides[1].settings)
        pairs = list(candidates(*self._sides))
        if any(pair.a.operator.startswith(OPTIMIZER) for pair in pairs):
            fixed = [name for name in fixed if not name.startswith(GROUP)]
        if fixed:
            self._tell(f"differ, but cannot be flipped in an operator: {_listed([self._valued(n) for n in fixed])}")
        if not pairs:
            one, other = map(_operators_of, self._sides)
            self._tell(f"counterfactual: could not run: {one} and {other} have no operator in common")
            return self._by_path()
        pairs = [pair for pair in pairs[:MOST_PAIRS] if settings or argument_factors(pair.a, pair.b)]
        if not pairs:
            same = "what can be flipped is" if fixed else "they are"
            self._tell(f"no cause among settings, environment and arguments: {same} the same in both variants")
            return self._by_path()
        self._compare_torch()
        grouped = together(self._trial(pairs[0], settings), settings)
        trials = [(self._trial(pair, grouped), pair.a.operator) for pair in pairs]
        found = any(self._by_signature(*each) for each in trials)
        found = found or any(self._by_time(*each) for each in trials[:MOST_TIMED])
        refused = {name for trial, _ in trials for name in trial.refused}
        if refused:
            self._tell(f"settings that this torch does not take, and that were not flipped: {_listed(sorted(refused))}")
        if found:
            return self.found
        rest = f"; not flipped: {_listed(fixed)}" if fixed else ""
        self._tell(f"no cause: nothing that differs between the variants was shown to make a difference{rest}")
        return self._by_path()

    def _by_path(self) -> Diagnosis:
        """Without a proof: where in Python the variants part, if they run other operators."""
        cause = parting(*self._sides)
        if cause is not None:
            self.found.cause, self.found.proof = cause, "consistent"
            calls = "; ".join(f"{frame} in {name}" for name, frame in cause.values.items())
            self._tell(f"stacks: the variants part in {cause.name}: {calls}")
        return self.found

    def _valued(self, name: str) -> str:
        """A setting of the snapshots with its values."""
        values = (f"{side.settings.get(name, UNSET)[:MOST_TYPED]} in {side.name}" for side in self._sides)
        return f"{name} ({', '.join(values)})"

    def _tell(self, line: str) -> None:
        self.found.lines.append(line)

    def _compare_torch(self) -> None:
        """Say so where operators are made again with another torch than the job had."""
        ours = version("torch")
        theirs = self._sides[0].settings.get("version.torch", ours)
        if theirs.partition("+")[0] != ours.partition("+")[0]:
            self._tell(f"counterfactual: made with torch {ours}, the job ran with {theirs}")

    def _trial(self, pair: Pair, settings: Sequence[Factor]) -> Trial:
        mine, theirs = (side.settings for side in self._sides)
        environment = environment_of(self._base, mine, self._prefixes)
        factors = [*settings, *argument_factors(pair.a, pair.b)]
        return Trial(self._laboratory, Side(mine, pair.a), Side(theirs, pair.b), factors, environment)

    def _by_signature(self, trial: Trial, operator: str) -> bool:
        """Is it clear, by the kernels that this call runs, what makes the difference?"""
        self._say(f"making {operator} again")
        nothing, everything = frozenset[int](), frozenset(range(len(trial.factors)))
        one, other = trial.signature(nothing), trial.signature(everything)
        if one.error or other.error:
            self._tell(f"counterfactual: {operator} could not be made again: {one.error or other.error}")
            return False
        if one != trial.signature(nothing) or other != trial.signature(everything):
            self._tell(f"counterfactual: the kernels of {operator} differ from process to process")
            return False
        if one == other:
            self._tell(f"counterfactual: {operator} runs the same kernels in both variants' worlds")
            return False
        mine, theirs = _apart(one, other, BY_PRIMITIVES if operator.startswith("aten.") else BY_OPERATORS)
        self._tell(f"counterfactual: {operator} runs {mine} as in {self._names[0]}, {theirs} as in {self._names[1]}")
        self._say(f"flipping {len(trial.factors)} differences of {operator}")
        layers = Layers(trial, operator, self._names)
        self.found.lines += layers.lines
        proof = prove(len(trial.factors), trial.behaves, layers.order())
        if proof.verdict is Verdict.ALIKE:
            self._tell(f"counterfactual: the kernels of {operator} differ from process to process")
            return False
        times: tuple[list[float], list[float]] = [], []
        with suppress(OutOfTimeError):  # the proof counts without them; what comes next says that time is over
            times = interleaved_seconds(trial, FLIPPED_ROUNDS)
        chosen = [trial.factors[number] for number in proof.factors]
        agreeing = layers.agreeing(chosen) + self._key_variable(trial, operator, layers, chosen)
        self._conclude(proof, trial, [median(of_side) if of_side else None for of_side in times], agreeing)
        return True

    def _key_variable(self, trial: Trial, operator: str, layers: Layers, chosen: Sequence[Factor]) -> list[str]:
        """Tell what decides in torch's own code; its layer, if it agrees that it is these factors."""
        self._say(f"following {operator} through torch's code")
        key = key_variable(trial)
        self.found.lines += key.lines(operator, self._names)
        agrees = layers.judged(key, chosen)
        if agrees is False:
            self._tell(f"{KEY_VARIABLE}: does not agree with what flipping shows")
        return [KEY_VARIABLE] if agrees else []

    def _by_time(self, trial: Trial, operator: str) -> bool:
        """Is it clear, by the time that this call takes, what makes the difference? Times are noisy: only a proof is.
        """
        self._say(f"timing {operator}")
        timing = Timing(trial)
        if not timing.apart or timing.seconds is None:
            self._tell(f"counterfactual: the times of {operator} cannot be told apart in fresh processes")
            return False
        mine, theirs = map(_time, timing.seconds)
        self._tell(
            f"counterfactual: {operator} takes {mine} as in {self._names[0]}, {theirs} as in {self._names[1]}, with "
            "the same kernels"
        )
        self._say(f"flipping {len(trial.factors)} differences of {operator}")
        proof = prove(len(trial.factors), timing.behaves)
        if proof.verdict is not Verdict.PROVED:
            self._tell(f"counterfactual: the times of {operator} do not tell what makes the difference")
            return False
        self._conclude(proof, trial, timing.seconds, [])
        return True

    def _conclude(self, proof: Proof, trial: Trial, times: Sequence[float | None], agreeing: list[str]) -> None:
        chosen = [trial.factors[number] for number in proof.factors]
        proved = proof.verdict is Verdict.PROVED
        self.found.proof = "proved" if proved else "consistent"
        names = [factor.name for factor in chosen]
        values = [", ".join(factor.values[side] for factor in chosen) for side in (0, 1)]
        statements = ["; ".join(statement(factor, side) for factor in chosen) for side in (0, 1)]
        self.found.cause = Cause(
            layer=" and ".join(dict.fromkeys(factor.kind for factor in chosen)),
            name=(" or " if proof.verdict is Verdict.EITHER else " and ").join(names),
            values=dict(zip(self._names, values, strict=True)),
            statements=dict(zip(self._names, statements, strict=True)),
            agreed=["snapshot", *agreeing, "counterfactual"],
            seconds={name: s for name, s in zip(self._names, times, strict=True) if s is not None},
        )
        for factor in chosen:
            if factor.with_it:
                self._tell(f"{factor.name} sets with it: {_listed([name for name, _, _ in factor.with_it])}")
        self._tell(self._in_words(proof, trial, names))
        flips = chosen[:1] if proof.verdict is Verdict.EITHER else chosen
        cheap_side = self._cheap_side(times)
        if cheap_side is not None:
            self.found.fix = fix_text(flips, cheap_side, self._names, self._where)
        if proved and self._meter:
            self._add_joules(trial, proof, names)

    def _cheap_side(self, times: Sequence[float | None]) -> int | None:
        """Which variant needs less: 0 or 1; None where nobody said so and their calls were not timed."""
        if self._cheap:
            return self._names.index(self._cheap)
        a, b = times
        return None if a is None or b is None else int(b < a)

    def _add_joules(self, trial: Trial, proof: Proof, names: list[str]) -> None:
        """What flipping the cause alone changes in the joules of one call."""
        self._say("comparing the joules of a call with and without the cause")
        found = flip_joules(trial, frozenset(proof.factors), self._meter, self._laboratory.left_s() / 2)
        self._tell(found.line(self._names, names))
        if found.before is not None and found.after is not None and self.found.cause is not None:
            joules = dict(zip(self._names, (found.before, found.after), strict=True))
            self.found.cause = structs.replace(self.found.cause, joules=joules, energy_kind=found.kind)

    def _in_words(self, proof: Proof, trial: Trial, names: list[str]) -> str:
        a, b = self._names
        if proof.verdict is not Verdict.PROVED:
            if len(names) == 1:
                return f"consistent, not proved: {names[0]} is enough, but was not shown to be needed"
            any_of, how = ("any of ", "is enough, none of") if proof.verdict is Verdict.EITHER else (
                "", "are enough together, not every one of")  # fmt: skip
            return f"consistent, not proved: {any_of}{_listed(names)} {how} them was shown to be needed"
        others = [factor.name for number, factor in enumerate(trial.factors) if number not in proof.factors]
        cleared = [name for name in others if name not in trial.refused]
        how = "alone makes" if len(names) == 1 else "together make"
        text = f"proved: {' and '.join(names)} {how} {a} behave as {b}, and {b} without it does not"
        return text + (f"; not the cause: {_listed(cleared)}" if cleared else "")


def _apart(a: Signature, b: Signature, layers: Sequence[str]) -> tuple[str, str]:
    """What only one of two signatures has, in the first of the layers where they differ."""
    for layer in layers:
        one, other = getattr(a, layer), getattr(b, layer)
        if one != other:
            mine = [name for name in dict.fromkeys(one) if name not in other]
            theirs = [name for name in dict.fromkeys(other) if name not in one]
            if mine or theirs:
                return _listed(mine) or f"no such {layer}", _listed(theirs) or f"no such {layer}"
    return "its kernels in one order or number", "in another"


def _operators_of(side: Recorded) -> str:
    return _listed(list(dict.fromkeys(side.record.ops["name"][op] for op in side.ops))) or "nothing"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
