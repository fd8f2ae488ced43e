"""Monitors that are drawn by hand: what each state moves is chosen here, and must be found again."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from magneton_dist.energy.corroboration import corroborate
from magneton_dist.records.monitors import MONITORS
from magneton_dist.timeline.states import STATES

MS = 1_000_000
SPIN = {"compute": (0.0, 0.6), "transfer": (300e9, 0.08), "wait": (0.0, 0.001), "idle": (0.0, 0.0)}  # NVLink B/s, DRAM


def drawn(cycle: list[tuple[str, float]], cycles: int, seed: int | None = 0, phase: str = "working") -> pl.DataFrame:
    """States that follow each other, each lasting its ms, by up to a half more or less (None: exactly)."""
    random = np.random.default_rng(seed)
    names = [name for name, _ in cycle] * cycles
    lengths = np.array([ms for _, ms in cycle] * cycles) * (1 if seed is None else random.uniform(0.5, 1.5, len(names)))
    edges = np.concatenate([[0], np.cumsum(np.rint(lengths * MS).astype(np.int64))])
    rows = [(int(a), int(b), phase, name) for a, b, name in zip(edges, edges[1:], names, strict=False)]
    return pl.DataFrame(rows, schema=STATES.schema, orient="row")


def seen(states: pl.DataFrame, rates: dict[str, tuple[float, float]], noise: float = 0.0) -> pl.DataFrame:
    """What monitors show that look every 100 ms: the mean of what the states move, NVLink by `noise` wrong."""
    edges = np.append(states["start_ns"].to_numpy(), states["end_ns"][-1])
    names, random, rows = states["activity"].to_list(), np.random.default_rng(1), []
    for start in range(0, int(edges[-1]) - 100 * MS, 100 * MS):
        inside = np.diff(np.clip(edges, start, start + 100 * MS)) / (100 * MS)
        link, dram = (float(sum(s * rates[n][k] for s, n in zip(inside, names, strict=True))) for k in (0, 1))
        rows.append(("GPU-1", start, start + 100 * MS, 1.0, 0.0, dram, link * (1 + noise * random.standard_normal())))
    return pl.DataFrame(rows, schema=MONITORS.schema, orient="row")


STEPS = [("compute", 40.0), ("wait", 15.0), ("transfer", 10.0), ("idle", 5.0)]


def test_a_wait_that_moves_nothing_and_a_transfer_that_does_agree() -> None:
    states = drawn(STEPS, 60)
    found = corroborate(states, seen(states, SPIN, noise=0.05))
    assert {name: one.verdict for name, one in found.items()} == {
        "working/wait": "agrees", "working/transfer": "agrees",
    }  # fmt: skip
    low, high = (float(word) for word in found["working/transfer"].reason.split(" GB/s")[0].split()[1::2])
    assert low < 300 < high  # GB/s, as chosen above
    assert "DRAM" in found["working/wait"].reason


def test_a_wait_during_which_data_move_and_a_transfer_during_which_none_do_contradict() -> None:
    states = drawn(STEPS, 60)
    swapped = {**SPIN, "wait": SPIN["transfer"], "transfer": SPIN["wait"]}
    found = corroborate(states, seen(states, swapped, noise=0.05))
    assert {one.verdict for one in found.values()} == {"contradicts"}


def test_traffic_that_only_dram_shows_is_traffic() -> None:
    """Between nodes data go by the network card, into and out of the device's memory."""
    states = drawn(STEPS, 60)
    monitors = seen(states, {**SPIN, "transfer": (0.0, 0.05)}).with_columns(nvlink_bytes_s=pl.lit(None, pl.Float64))
    found = corroborate(states, monitors)
    assert {one.verdict for one in found.values()} == {"agrees"}
    assert "NVLink" not in found["working/transfer"].reason


def test_phases_are_told_apart() -> None:
    working, finished = drawn(STEPS, 30), drawn([("wait", 70.0), ("transfer", 20.0)], 30, phase="finished")
    shifted = finished.with_columns(pl.col("start_ns", "end_ns") + working["end_ns"][-1])
    states = pl.concat([working, shifted])
    found = corroborate(states, seen(states, SPIN))
    assert sorted(found) == ["finished/transfer", "finished/wait", "working/transfer", "working/wait"]
    assert {one.verdict for one in found.values()} == {"agrees"}


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (drawn(STEPS, 4), "looks at the monitors"),  # too few
        # each look has as much of each state as every other
        (drawn([("compute", 25.0), ("wait", 15.0), ("transfer", 10.0)], 80, seed=None), "do not tell it from other"),
    ],
)
def test_what_cannot_be_told_is_not_said(states: pl.DataFrame, words: str) -> None:
    found = corroborate(states, seen(states, SPIN))
    assert {one.verdict for one in found.values()} == {"not available"}
    assert all(words in one.reason for one in found.values())


def test_looks_wholly_within_long_waits_and_transfers_speak_for_themselves() -> None:
    states = drawn([("compute", 500.0), ("wait", 900.0), ("transfer", 600.0)], 1, seed=None)  # 19 looks
    found = corroborate(states, seen(states, SPIN))
    assert {name: (one.verdict, one.reason) for name, one in found.items()} == {
        "working/wait": ("agrees", "NVLink 0 to 0 GB/s, DRAM 0.1 to 0.1 %"),
        "working/transfer": ("agrees", "NVLink 300 to 300 GB/s, DRAM 8 to 8 %"),
    }
    now_and_then = seen(states, SPIN).with_columns(
        nvlink_bytes_s=pl.when(pl.int_range(pl.len()) == 7).then(9e10).otherwise("nvlink_bytes_s")
    )
    said = corroborate(states, now_and_then)["working/wait"]  # one of nine looks saw data move
    assert (said.verdict, said.reason) == (
        "not available", "open whether data move: NVLink 0 to 90 GB/s, DRAM 0.1 to 0.1 %",
    )  # fmt: skip


def test_a_state_that_was_hardly_there_leaves_the_others_their_say() -> None:
    states = drawn(STEPS, 60)
    last = states["end_ns"][-1]
    briefly = pl.DataFrame([(last, last + MS // 100, "finished", "transfer")], schema=STATES.schema, orient="row")
    after = pl.DataFrame([(last + MS // 100, last + 500 * MS, "finished", "idle")], schema=STATES.schema, orient="row")
    states = pl.concat([states, briefly, after])
    found = corroborate(states, seen(states, SPIN))
    assert {name: one.verdict for name, one in found.items()} == {
        "working/wait": "agrees", "working/transfer": "agrees", "finished/transfer": "not available",
    }  # fmt: skip


def test_noise_that_hides_the_traffic_leaves_it_open() -> None:
    states = drawn(STEPS, 60)
    found = corroborate(states, seen(states, {**SPIN, "transfer": (1.1e9, 0.01), "compute": (90e9, 0.3)}, noise=1.0))
    assert found["working/transfer"].verdict == "not available"
    assert "open whether data move" in found["working/transfer"].reason


def test_without_looks_or_without_collectives_there_is_nothing_to_say() -> None:
    states = drawn(STEPS, 10)
    assert {one.reason for one in corroborate(states, MONITORS.empty()).values()} == {
        "the monitors told nothing in that time"
    }
    assert corroborate(drawn([("compute", 10.0)], 10), MONITORS.empty()) == {}
