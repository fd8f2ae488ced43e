"""What slow power sensors tell about states and operators, on simulated sensors; figures in build/bench/energy.json.

Replay: the operators of the paper's Table 4 as rows, under every sensor class, lag withheld from the estimator;
errors are against gain times truth. Beside it what a monitor makes of one second of the same repetitions.

    replay_error_worst     largest error of an operator's joules
    replay_coverage        share of the 95 % intervals that hold the truth, in the worst class
    replay_half_width      of the intervals, median
    replay_inconclusive    share of the replays that did not settle
    replay_naive_error_worst    of the monitor
Every sensor class watches 30 s runs of jittered steps of 50 to 500 ms, gain and lag withheld from the estimator.
Errors and widths are shares of the device's total, against gain times truth.

    states_error_worst     largest error of a state's energy that was not refused
    states_refused         share of the runs refused
    interval_coverage      share of the 95 % intervals that hold the truth, in the worst class
    half_width_median      of the intervals
    naive_error_worst      largest error when readings are taken to hold since the reading before, as monitors do
    periodic_refused       share of the strictly periodic runs of 50 and 100 ms steps refused, 100 ms sensors
    sampler_core_share     of one core that reading a meter at the default rate costs
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulated_replay import TABLE_4, Device, joules, naive_joules

from magneton_dist.config.models import Energy
from magneton_dist.energy.attribution import Floats, PowerIntegral
from magneton_dist.energy.deconvolution import deconvolve
from magneton_dist.energy.replay.protocol import Rules, estimate, measure
from magneton_dist.meters import Sampler
from magneton_dist.meters.sensor import Sensor
from magneton_dist.meters.simulated import PUBLISHED, SimulatedMeter, simulated_power

RESULT = Path(__file__).resolve().parents[2] / "build" / "bench" / "energy.json"
RUNS = 200
REPLAYS = 40
SECONDS = 30.0
NOISE_W = 2.0
WATTS = {"compute": 500.0, "transfer": 250.0, "wait": 130.0, "idle": 110.0}
SHARES = np.array([0.6, 0.2, 0.1, 0.1])


@dataclass(frozen=True)
class Run:
    """A power and the states behind it; `truth` has the joules by state."""

    trace: tuple[Floats, Floats]
    states: pl.DataFrame
    truth: Floats

    @classmethod
    def of(cls, seed: int, step_s: float, jitter: bool = True) -> Run:
        """Power fluctuates by 5 % from interval to interval and drifts by 1 %."""
        random = np.random.default_rng(seed)
        steps, kinds = int(SECONDS / step_s), len(WATTS)
        stretch = np.ones((steps, kinds))
        if jitter:
            stretch = random.uniform(0.5, 1.5, (steps, kinds))
            stretch[:, 2] = random.exponential(1.0, steps)  # waits: mostly short, some long
        lengths_s = (stretch * step_s * SHARES).ravel()
        watts = np.tile(list(WATTS.values()), steps) * random.lognormal(0, 0.05, steps * kinds)
        watts *= np.linspace(1.0, 1.01, len(watts))
        edges_s = 50 + np.concatenate([[0.0], np.cumsum(lengths_s)])
        edges_ns = np.rint(edges_s * 1e9).astype(np.int64)
        states = pl.DataFrame(
            {"start_ns": edges_ns[:-1], "end_ns": edges_ns[1:], "state": list(WATTS) * steps}
        )
        return cls((edges_s, watts), states, (watts * lengths_s).reshape(steps, kinds).sum(axis=0))


def main() -> None:
    """Run every class, print the table, write the figures."""
    replayed = replays()
    print(f"\n{'states':24}{'refused':>9}{'error worst':>13}{'coverage':>10}{'half-width':>12}{'naive worst':>13}")
    classes = [watch(name, sensor) for name, sensor in PUBLISHED.items()]
    figures = replayed | {
        "states_error_worst": max(row["error"] for row in classes),
        "states_refused": float(np.mean([row["refused"] for row in classes])),
        "interval_coverage": min(row["coverage"] for row in classes),
        "half_width_median": float(np.median(np.concatenate([row["halves"] for row in classes]))),
        "naive_error_worst": max(row["naive"] for row in classes),
        "periodic_refused": periodic_refused(),
        "sampler_core_share": sampler_core_share(),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:26} {value:10.5f}")


def replays() -> dict[str, float]:
    """Figures of replay over all classes and operators."""
    print(f"{'replay':24}{'operator':12}{'error worst':>13}{'coverage':>10}{'half-width':>12}{'naive worst':>13}")
    errors, halves, naive, inconclusive, coverage = [], [], [], [], []
    for number, (name, sensor) in enumerate(PUBLISHED.items()):
        of_class = []
        for place, operator in enumerate(TABLE_4):
            seeds = (10_000 * number + 1_000 * place + seed for seed in range(REPLAYS))
            rows = np.array([replay(sensor, operator, seed) for seed in seeds])
            error, half, conclusive, plain = rows.T
            of_class.append(np.abs(error) <= half)
            errors, halves, naive = [*errors, *np.abs(error)], [*halves, *half], [*naive, *np.abs(plain)]
            inconclusive += list(1 - conclusive)
            print(
                f"{name:24}{operator:12}{np.abs(error).max():13.2%}{of_class[-1].mean():10.0%}"
                f"{np.median(half):12.2%}{np.abs(plain).max():13.1%}"
            )
        coverage.append(float(np.mean(of_class)))
    return {
        "replay_error_worst": float(max(errors)),
        "replay_coverage": min(coverage),
        "replay_half_width": float(np.median(halves)),
        "replay_inconclusive": float(np.mean(inconclusive)),
        "replay_naive_error_worst": float(max(naive)),
    }


def replay(sensor: Sensor, operator: str, seed: int) -> tuple[float, float, float, float]:
    """Error, half-width, whether it settled, and the monitor's error, relative to gain times truth."""
    lag_s = np.random.default_rng([seed, 2]).uniform(0.0, 0.1)
    lagging, cycle = sensor.model_copy(update={"lag_s": lag_s}), TABLE_4[operator]
    device, truth = Device(lagging, seed), sensor.gain * joules(cycle)
    series = measure([device.arm(cycle)], device, Rules())
    found = estimate(series.joules[:, 0])
    return found.mean / truth - 1, found.half / truth, series.conclusive, naive_joules(lagging, cycle, seed) / truth - 1


def watch(name: str, sensor: Sensor) -> dict[str, Floats | float]:
    """Figures of one class over all runs."""
    errors, naive, covered, halves, refused = [], [], [], [], 0
    for seed in range(RUNS):
        random = np.random.default_rng([seed, 1])
        lagging = sensor.model_copy(update={"lag_s": random.uniform(0.0, 0.1)})
        run = Run.of(seed, step_s=random.uniform(0.05, 0.5))
        power = simulated_power(lagging, run.trace, NOISE_W, seed)
        truth = sensor.gain * run.truth
        naive.append(np.abs(integrated(power, run.states) - truth).max() / truth.sum())
        declared = Sensor(period_s=sensor.period_s, window_s=sensor.window_s)
        found = deconvolve(power, run.states, declared, lag_known=False)
        if found.refused:
            refused += 1
            continue
        low, high = np.array([found.joules[state].ci95 for state in WATTS]).T
        errors.append(np.abs((low + high) / 2 - truth).max() / truth.sum())
        covered.append((low <= truth) & (truth <= high))
        halves.append((high - low) / 2 / truth.sum())
    row = {
        "refused": refused / RUNS, "error": max(errors), "coverage": float(np.mean(covered)),
        "halves": np.concatenate(halves), "naive": max(naive),
    }  # fmt: skip
    print(
        f"{name:24}{row['refused']:9.1%}{row['error']:13.2%}{row['coverage']:10.1%}"
        f"{np.median(row['halves']):12.2%}{row['naive']:13.1%}"
    )
    return row


def integrated(power: pl.DataFrame, states: pl.DataFrame) -> Floats:
    """Joules by state when a reading is taken for the power since the one before."""
    joules = PowerIntegral(power).joules(states["start_ns"].to_numpy(), states["end_ns"].to_numpy())
    return joules.reshape(-1, len(WATTS)).sum(axis=0)


def periodic_refused() -> float:
    """Strictly periodic steps: which share is refused."""
    answers = []
    for name in ("25/100 ms", "100/100 ms", "1000/100 ms"):
        for step_s in (0.05, 0.1):
            for seed in range(10):
                run = Run.of(seed, step_s, jitter=False)
                power = simulated_power(PUBLISHED[name], run.trace, NOISE_W, seed)
                answers.append(bool(deconvolve(power, run.states, PUBLISHED[name], lag_known=True).refused))
    return float(np.mean(answers))


def sampler_core_share() -> float:
    """CPU time of the sampler's thread over 10 s."""
    steady = (np.array([0.0, time.monotonic()]), np.array([124.0]))
    sampler = Sampler(SimulatedMeter(PUBLISHED["25/100 ms"], lambda: steady), Energy().period_ms / 1e3)
    sampler.start()
    time.sleep(10)
    sampler.stop()
    return sampler.core_share


if __name__ == "__main__":
    main()
