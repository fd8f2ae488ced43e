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
        step: steps that the slowest rank has finished.
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

    def left_s(self, run: int, elapsed_s: float, share: float | None) -> float | None:
        """Seconds left when run number `run` (from 0) is under way.

        Args:
            run: which run.
            elapsed_s: seconds since it began.
            share: finished share of its steps, None when unknown.
        """
        if not self._took_s and not share:
            return None
        now_s = elapsed_s / share if share else self._expected_s(self.variants[run])
        known = [*self._took_s.values(), [now_s]] if not self._took_s else list(self._took_s.values())
        typical_s = mean(mean(times) for times in known)
        later = sum(
            mean(self._took_s[variant]) if variant in self._took_s else typical_s
            for variant in self.variants[run + 1 :]
        )
        return max(0.0, now_s - elapsed_s) + later

    def _expected_s(self, variant: str) -> float:
        times = self._took_s.get(variant) or [mean(times) for times in self._took_s.values()]
        return mean(times)
