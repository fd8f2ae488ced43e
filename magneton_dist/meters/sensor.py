"""What a power sensor does to the power it sees, as a linear response.

A reading at `t` is the gain times the mean power over ``[t - lag - window, t - lag]``, of a power whose steps are
first smeared into ramps of `rise`. Both faults are boxcars, so the response to a power that is constant between
edges is exact: differences of its first integral, or of its second one where there is a rise.
The published sensors average 25 of every 100 ms, 100 of 100, 10 of 20, or 1000 ms every 100 ms, with gains down
to -5.5 % (arXiv 2312.02741).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Floats = npt.NDArray[np.float64]


class Sensor(BaseModel):
    """A declared sensor.

    Attributes:
        name: in the power table (``nvml-instant``); empty: whichever is there.
        period_s: time between two updates, s.
        window_s: time that a reading averages over, s.
        lag_s: age of the window's end when the reading appears, s.
        rise_s: time that the sensor's input takes to follow a step, as a straight line, s.
        gain: reading over true mean; 1 where nobody has compared it with a reference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = ""
    period_s: float = Field(gt=0)
    window_s: float = Field(gt=0)
    lag_s: float = Field(default=0.0, ge=0)
    rise_s: float = Field(default=0.0, ge=0)
    gain: float = Field(default=1.0, gt=0)

    @property
    def reach_s(self) -> float:
        """How far back of its own time a reading looks, s."""
        return self.lag_s + self.window_s + self.rise_s

    def response(self, t_s: Floats, edges_s: Floats, values: Floats) -> Floats:
        """What readings at `t_s` show of signals that are constant between edges.

        Args:
            t_s: times of readings, shape (readings,), s.
            edges_s: increasing, shape (intervals + 1,), s; the outer values go on beyond them.
            values: shape (intervals, signals).

        Returns:
            Shape (readings, signals), in the unit of `values`.
        """
        end_s = t_s - self.lag_s
        start_s = end_s - self.window_s
        integral = _Integral(edges_s, values)
        if not self.rise_s:
            return self.gain * (integral.first(end_s) - integral.first(start_s)) / self.window_s
        at_end, at_start = (integral.second(at) - integral.second(at - self.rise_s) for at in (end_s, start_s))
        return self.gain * (at_end - at_start) / (self.window_s * self.rise_s)


def fit_sensor(
    t_s: Floats,
    watts: Floats,
    edges_s: Floats,
    labels: Floats,
    sensor: Sensor,
    search: dict[str, Sequence[float]],
    whiten: Callable[[Floats], Floats] = lambda rows: rows,
) -> Sensor:
    """The sensor under which readings are explained best, whatever the power of each state.

    Args:
        t_s: times of readings, s.
        watts: the readings, W.
        edges_s: edges of the states, s.
        labels: one column per state, 1 where the interval is in it, shape (intervals, states).
        sensor: where the attributes that are not searched come from.
        search: values to try by attribute; the best of them is refined between its neighbours.
        whiten: makes rows (one per reading) independent of each other.
    """
    shown = whiten(watts[:, None])[:, 0]

    def unexplained(values: Sequence[float] | Floats) -> float:
        tried = sensor.model_copy(update=dict(zip(search, values, strict=True)))
        if tried.window_s <= 0 or min(tried.lag_s, tried.rise_s) < 0:
            return np.inf
        design = whiten(tried.response(t_s, edges_s, labels))
        return float(np.square(shown - design @ np.linalg.lstsq(design, shown, rcond=1e-9)[0]).sum())

    best = np.array(min(product(*search.values()), key=unexplained))
    steps = np.array([np.diff(values).max() for values in search.values()])
    while (steps > 2e-5).any():  # s; a compass search: as good as any in one or two dimensions
        moves = [best + sign * step for step in np.diag(steps) for sign in (-1, 1)]
        better = min(moves, key=unexplained)
        if unexplained(better) < unexplained(best):
            best = better
        else:
            steps = steps / 2
    return sensor.model_copy(update=dict(zip(search, best.tolist(), strict=True)))


class _Integral:
    """First and second integral over time of signals constant between edges."""

    def __init__(self, edges_s: Floats, values: Floats) -> None:
        lengths_s = np.diff(edges_s)[:, None]
        zero = np.zeros((1, values.shape[1]))
        self._edges_s, self._values = edges_s, values
        self._first = np.concatenate([zero, np.cumsum(values * lengths_s, axis=0)])
        inside = self._first[:-1] * lengths_s + values * lengths_s**2 / 2
        self._second = np.concatenate([zero, np.cumsum(inside, axis=0)])

    def first(self, t_s: Floats) -> Floats:
        at, since_s = self._place(t_s)
        return self._first[at] + self._values[at] * since_s

    def second(self, t_s: Floats) -> Floats:
        at, since_s = self._place(t_s)
        return self._second[at] + self._first[at] * since_s + self._values[at] * since_s**2 / 2

    def _place(self, t_s: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        at = np.clip(np.searchsorted(self._edges_s, t_s, side="right") - 1, 0, len(self._values) - 1)
        return at, (t_s - self._edges_s[at])[:, None]
