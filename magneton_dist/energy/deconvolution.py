"""Energy of states and intervals from a sensor slower than they are.

Every reading is a mean over the states in its window, so readings are a linear function of the watts of each
state: least squares gives them back, and joules are watts times seconds. A constant gain error of the sensor
cannot be seen in its own readings and stays in every joule.

What cannot be told is refused: where every window holds the same mixture of states (strictly periodic steps in
pace with the sensor), where states always come together, and where the interval would be wider than useful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from scipy import stats
from scipy.linalg import cholesky_banded, solve_banded

from magneton_dist.energy.attribution import Attribution, Floats
from magneton_dist.energy.statistics import CONFIDENCE
from magneton_dist.meters.sensor import Sensor, fit_sensor
from magneton_dist.records.audit import Interval, StateShare

# Below this coefficient of variation of the mixtures, errors of a millisecond in the times decide the result.
MIN_VARIATION = 0.05
# An answer is given when this share of the device's total is three standard errors away, for every state.
TOLERANCE = 0.02
MIN_READINGS = 30
STAMPED = 0.8  # share of readings that differ from the one before, above it the sensor tells when it updates
LAGS_S = tuple(np.arange(0.0, 0.16, 0.01).tolist())

Whitening = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Deconvolution:
    """Energy by state, as the sensor's gain shows it.

    Attributes:
        joules: of each state, with its 95 % interval; empty when refused.
        total_j: of all of them together; None when refused.
        watts: of each state.
        lag_s: the sensor's lag, given or found, s.
        refused: why nothing can be said, empty when it can.
        covariance: of the watts, shape (states, states).
        deviates: how many standard errors the interval spans to each side.
    """

    joules: dict[str, Interval] = field(default_factory=dict)
    total_j: Interval | None = None
    watts: dict[str, float] = field(default_factory=dict)
    lag_s: float = 0.0
    refused: str = ""
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    deviates: float = 0.0

    def energy(self, seconds: dict[str, float]) -> Interval:
        """Joules of a stretch of time that spends `seconds` in each state, at the states' mean watts."""
        spent = np.array([seconds.get(state, 0.0) for state in self.watts])
        joules = float(spent @ np.array(list(self.watts.values())))
        half = self.deviates * float(np.sqrt(spent @ self.covariance @ spent))
        return Interval(joules, (joules - half, joules + half))


def deconvolve(power: pl.DataFrame, states: pl.DataFrame, sensor: Sensor, *, lag_known: bool) -> Deconvolution:
    """Energy of each state under the readings of a declared sensor.

    Args:
        power: one device's readings, schema `POWER`; their `t_ns` is when the sensor updated.
        states: start_ns, end_ns, state; in order, without overlap. Time between them is a state of its own.
        sensor: period, window and rise; its gain is not undone.
        lag_known: `sensor.lag_s` is measured (`calibrate`); otherwise the lag is found from the readings too,
            and the intervals are wider for it.
    """
    names, edges_s, labels, origin_ns = _labels(states)
    if not names:
        return Deconvolution(refused="there are no states")
    readings = power.drop_nulls("watts").sort("t_ns")
    t_s = (readings["t_ns"].to_numpy() - origin_ns) / 1e9
    slowest = sensor if lag_known else sensor.model_copy(update={"lag_s": max(LAGS_S)})
    inside = (t_s >= slowest.reach_s) & (t_s <= edges_s[-1])
    t_s, watts = t_s[inside], readings["watts"].to_numpy()[inside]
    if len(t_s) < MIN_READINGS:
        return Deconvolution(refused=f"{len(t_s)} readings lie within the states; at least {MIN_READINGS} must")

    sensor = sensor.model_copy(update={"gain": 1.0})
    whiten: Whitening = _as_they_are
    for _ in range(2):  # the second time knowing how the readings hang together
        if not lag_known:
            sensor = fit_sensor(t_s, watts, edges_s, labels, sensor, {"lag_s": LAGS_S}, whiten)
        mixtures = sensor.response(t_s, edges_s, labels)
        fitted = np.linalg.lstsq(whiten(mixtures), whiten(watts[:, None])[:, 0])[0]
        residuals = watts - mixtures @ fitted
        if whiten is _as_they_are:
            whiten = _whitening(residuals, sensor)
    seconds = labels.T @ np.diff(edges_s)
    refused = _alike(mixtures, seconds, names, sensor)
    if refused:
        return Deconvolution(lag_s=sensor.lag_s, refused=refused)

    design = mixtures
    if not lag_known:
        later = sensor.model_copy(update={"lag_s": sensor.lag_s + 1e-3})
        slope = (later.response(t_s, edges_s, labels) - mixtures) @ fitted
        design = np.column_stack([mixtures, slope])
    covariance, freedom = _covariance(whiten(design), whiten(residuals[:, None]))
    found = Deconvolution(
        watts=dict(zip(names, fitted.tolist(), strict=True)),
        lag_s=sensor.lag_s,
        covariance=covariance[: len(names), : len(names)],
        deviates=float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)),
    )
    return _answer(found, dict(zip(names, seconds.tolist(), strict=True)))


def told_apart(
    plain: Attribution, power: pl.DataFrame, states: pl.DataFrame, sensor: Sensor, share: float = 1.0
) -> Attribution:
    """`plain`, with the joules of its states as the sensor's response gives them; notes say how far.

    The total stays the integral of the power: what the states do not add up to is the residual. Where states
    cannot be told apart they stay as they are, each with what its neighbours draw, and the notes say why.

    Args:
        plain: by `energy.attribution.attribute`, which takes a reading for the power since the one before.
        power, states: as there.
        sensor: measured by `calibrate`, its lag included.
        share: of the device's energy that is this rank's.
    """
    if plain.total_j is None or not plain.states:
        return plain
    named = states.select("start_ns", "end_ns", state=pl.concat_str(["phase", "activity"], separator="/"))
    updates, refused = _updates(power, sensor)
    if share != 1.0:
        refused = "other ranks' states are mixed into the readings of a shared device"
    if not refused:
        found = deconvolve(updates, named, sensor, lag_known=True)
        refused = found.refused
    if refused:
        return replace(plain, notes=(*plain.notes, f"joules of states are blurred by the sensor: {refused}"))
    shares = {
        state: StateShare(of.s, None if of.j is None else found.joules[state].mean)
        for state, of in plain.states.items()
    }
    known_j = sum(of.j for of in shares.values() if of.j is not None)
    widths = ", ".join(
        f"{state} ±{energy.ci95[1] - energy.mean:.2g} J" for state, energy in found.joules.items() if energy.ci95
    )
    note = f"states told apart through the sensor's {1e3 * sensor.window_s:g} ms windows, 95 % intervals: {widths}"
    return replace(plain, states=shares, residual_j=plain.total_j - known_j, notes=(*plain.notes, note))


def _updates(power: pl.DataFrame, sensor: Sensor) -> tuple[pl.DataFrame, str]:
    """One row per update of the sensor, at the time it came; or why that is not to be had.

    A sensor without timestamps repeats itself until it updates, some time before the poll that shows it.
    """
    names = power["sensor"].unique().to_list()
    if sensor.name and names != [sensor.name]:
        return power, f"the profile is of the sensor {sensor.name}, the readings are of {', '.join(names)}"
    power = power.sort("t_ns")
    updates = power.filter((pl.col("watts") != pl.col("watts").shift(1)).fill_null(True))
    if len(updates) > STAMPED * len(power):
        return power, ""
    poll_s = float(np.median(np.diff(power["t_ns"].to_numpy()))) / 1e9
    if poll_s > sensor.window_s / 5:
        wanted = f"set energy.period_ms to {1e3 * sensor.window_s / 5:.0f}"
        return power, f"polled every {1e3 * poll_s:.0f} ms, it is not known when the sensor updated: {wanted}"
    return updates.with_columns(t_ns=pl.col("t_ns") - round(poll_s / 2 * 1e9)), ""


def _labels(states: pl.DataFrame) -> tuple[list[str], Floats, Floats, int]:
    """Names, edges in s since the first, one column of 0 and 1 per name, and when the first edge was."""
    states = states.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
    if states.is_empty():
        return [], np.zeros(0), np.zeros((0, 0)), 0
    gaps = states.select(
        start_ns=pl.col("end_ns"), end_ns=pl.col("start_ns").shift(-1), state=pl.lit("between states")
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
    whole = pl.concat([states.select("start_ns", "end_ns", "state"), gaps]).sort("start_ns")
    origin_ns = int(whole["start_ns"][0])
    edges_ns = np.append(whole["start_ns"].to_numpy(), whole["end_ns"][-1])
    names, codes = np.unique(whole["state"].to_numpy(), return_inverse=True)
    return names.tolist(), (edges_ns - origin_ns) / 1e9, np.eye(len(names))[codes], origin_ns


def _alike(mixtures: Floats, seconds: Floats, names: list[str], sensor: Sensor) -> str:
    """Why the mixtures do not tell the states apart, empty when they do.

    Mixtures are taken relative to each state's share of the time. They always vary in one direction less than
    there are states, as the shares of a window add up to 1.
    """
    if len(names) == 1:
        return ""
    relative = mixtures / (seconds / seconds.sum())
    _, spreads, directions = np.linalg.svd(relative - relative.mean(axis=0), full_matrices=False)
    variation = spreads[len(names) - 2] / np.sqrt(len(mixtures))
    if variation >= MIN_VARIATION:
        return ""
    weights = np.abs(directions[len(names) - 2])
    together = [name for name, weight in zip(names, weights, strict=True) if weight > 0.3 * weights.max()]
    return (
        f"the {1e3 * sensor.window_s:g} ms windows hold nearly the same mixture of {', '.join(together)} every time "
        f"(it varies by {variation:.1%}): the steps are periodic in pace with the sensor, or these states always "
        "come together; vary the length of the steps, or merge the states"
    )


def _as_they_are(rows: Floats) -> Floats:
    return rows


def _whitening(residuals: Floats, sensor: Sensor) -> Whitening:
    """What makes readings of overlapping windows independent.

    Power that fluctuates within a state is seen by every window that holds the moment, so the covariance of two
    readings falls along a straight line to 0 where their windows part; noise of the sensor adds to its diagonal.
    """
    windows = sensor.window_s / sensor.period_s
    reach = int(np.ceil(windows)) - 1
    if reach < 1:
        return _as_they_are
    line = 1 - np.arange(reach + 1) / windows
    found = np.array([residuals[distance:] @ residuals[: len(residuals) - distance] for distance in range(reach + 1)])
    share = float(np.clip(found[1:] @ line[1:] / (line[1:] @ line[1:]) / found[0], 0.0, 0.99))
    bands = np.repeat(share * line[:, None], len(residuals), axis=1)
    bands[0] = 1.0
    factor = cholesky_banded(bands, lower=True)
    return lambda rows: np.asarray(solve_banded((reach, 0), factor, rows))


def _covariance(design: Floats, residuals: Floats) -> tuple[Floats, float]:
    """Newey-West covariance of the fitted values, and the degrees of freedom it stands on."""
    readings, values = design.shape
    reach = int(4 * (readings / 100) ** (2 / 9))
    scores = design * residuals
    middle = scores.T @ scores
    for distance in range(1, reach + 1):
        shifted = scores[distance:].T @ scores[:-distance]
        middle += (1 - distance / (reach + 1)) * (shifted + shifted.T)
    inverse = np.linalg.pinv(design.T @ design)
    freedom = max(1.0, 1.5 * readings / (reach + 1) - values)  # Bartlett's kernel averages over 2/3 of its reach
    return inverse @ middle @ inverse * readings / (readings - values), freedom


def _answer(found: Deconvolution, seconds: dict[str, float]) -> Deconvolution:
    total = found.energy(seconds)
    errors_j = np.sqrt(np.diag(found.covariance)) * list(seconds.values())
    widest = int(errors_j.argmax())
    if 3 * errors_j[widest] > TOLERANCE * total.mean:
        refused = (
            f"{list(seconds)[widest]} is known only to ±{3 * errors_j[widest] / total.mean:.1%} of the device's total "
            f"(three standard errors), {TOLERANCE:.0%} is asked for: run longer, or vary the length of the steps more"
        )
        return Deconvolution(lag_s=found.lag_s, refused=refused)
    return replace(found, joules={state: found.energy({state: seconds[state]}) for state in seconds}, total_j=total)
