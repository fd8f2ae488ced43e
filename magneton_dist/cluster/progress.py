"""What the driver is told while an audit runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of an audit.

    Attributes:
        state: of the coordinator: Placing, Starting, Running, Draining, Aggregating, Diagnosing, Done, Failed.
        variant: what runs.
        repeat: which repeat; None in a discarded warm-up run.
        run: number of this run, from 1.
        runs: of so many.
        step: steps that the furthest rank has finished; ranks may have unequal numbers of them.
        steps: of so many; None while that is unknown.
        ranks: ranks that have announced themselves.
        world_size: of so many.
        left_s: seconds left in the audit; None while that is unknown.
        note: what just happened, in words: a replaced actor, a rank that is gone.
    """

    state: str
    variant: str
    repeat: int | None
    run: int
    runs: int
    step: int
    steps: int | None
    ranks: int
    world_size: int
    left_s: float | None
    note: str = ""


@dataclass(slots=True)
class Forecast:
    """Seconds left, from the runs so far: a run takes as long as those of its variant did."""

    variants: list[str]  # of every run, in order
    _took_s: dict[str, list[float]] = field(default_factory=dict)
    _steps: dict[str, int] = field(default_factory=dict)

    def finished(self, variant: str, seconds: float, steps: int) -> None:
        """Take a finished run into account."""
        self._took_s.setdefault(variant, []).append(seconds)
        self._steps[variant] = steps

    def steps(self, variant: str) -> int | None:
        """Steps that the last run of `variant` took."""
        return self._steps.get(variant)

    def left_s(self, run: int, elapsed_s: float, extrapolated_s: float | None) -> float | None:
        """Seconds left when run number `run` (from 0) is under way.

        Args:
            run: which run.
            elapsed_s: seconds since it began.
            extrapolated_s: seconds it will take by its own steps so far, None when they tell nothing yet.
        """
        known = self._took_s.get(self.variants[run])
        now_s = mean(known) if known else extrapolated_s or self._typical_s()
        if now_s is None:
            return None
        typical_s = self._typical_s() or now_s
        later_s = sum(
            mean(self._took_s[variant]) if variant in self._took_s else typical_s
            for variant in self.variants[run + 1 :]
        )
        return max(0.0, now_s - elapsed_s) + later_s

    def _typical_s(self) -> float | None:
        return mean(mean(times) for times in self._took_s.values()) if self._took_s else None
