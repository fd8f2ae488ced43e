from __future__ import annotations

from dataclasses import replace

import pytest

from magneton_dist.detect import shadow
from magneton_dist.meters.sensor import Sensor
from magneton_dist.records.audit import Corroboration

from .conftest import summary

STACK = [
    "/usr/lib/site-packages/torch/distributed/algorithms/join.py:240 __exit__",
    "/usr/lib/python3/contextlib.py:100 inner",
    "/home/me/train.py:42 main",
    "/home/me/train.py:50 <module>",
]
SHADOW = {"origin": "join_shadow", "phase": "finished", "count": 114, "zero_count": 114, "zero_bytes": 60_000_000,
          "first_step": 10, "last_step": 10}  # fmt: skip
CONTROL = {"origin": "join_control", "phase": "finished", "count": 39}


def join_run(scale: float = 1.0):  # type: ignore[no-untyped-def]
    finished = {"working/compute": 2.0, "finished/wait": 6.0 * scale, "finished/transfer": 1.0}
    return [
        summary(0, finished, SHADOW, CONTROL, stack=STACK),
        summary(1, {"working/compute": 2.0 + 7.0 * scale}, steps=48),
    ]


def test_a_shadowing_rank_is_named_with_its_collectives_zeros_joules_and_line(runs) -> None:  # type: ignore[no-untyped-def]
    (finding,) = shadow.alone(runs(join_run(), join_run()))
    assert finding.kind == "shadow-collective"
    assert finding.ranks == [0]
    assert finding.evidence["collectives"] == 114
    assert finding.evidence["control_collectives"] == 39
    assert finding.evidence["zero_bytes"] == 60_000_000
    assert finding.seconds == pytest.approx(7.0)
    # above bare idle (74 W): 6 s of waiting at 124 W and 1 s of transfer at 126 W
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(6 * (124 - 74) + 1 * (126 - 74))
    # parking keeps the context: 122 W
    assert finding.evidence["saved_if_parked_j"] == pytest.approx(6 * (124 - 122) + 1 * (126 - 122))
    assert finding.where.stack == ["/home/me/train.py:42 main", "/home/me/train.py:50 <module>"]
    assert "/home/me/train.py:42" in finding.fix
    assert "EarlyExit" in finding.fix
    # of both ranks' joules: 2*138 + 6*124 + 126 and 9*138
    assert finding.share == pytest.approx((6 * 50 + 52) / (2 * 138 + 6 * 124 + 126 + 9 * 138))
    assert finding.energy_kind == "modelled"


def test_the_interval_covers_the_spread_between_repeats(runs) -> None:  # type: ignore[no-untyped-def]
    (finding,) = shadow.alone(runs(join_run(1.0), join_run(1.1)))
    assert finding.joules is not None
    assert finding.joules.ci95 is not None
    low, high = finding.joules.ci95
    assert low < 352 < high
    assert low < 352 + 0.6 * 50 < high


def test_zeros_of_a_working_rank_are_no_shadow(runs) -> None:  # type: ignore[no-untyped-def]
    zeros = {"origin": "ddp", "phase": "working", "count": 48, "zero_count": 48, "zero_bytes": 9_000_000}
    assert shadow.alone(runs([summary(0, {"working/compute": 9.0}, zeros)])) == []


def test_a_finished_rank_without_join_is_no_shadow(runs) -> None:  # type: ignore[no-untyped-def]
    parked = summary(0, {"working/compute": 2.0, "finished/idle": 7.0}, {"origin": "ddp", "count": 10})
    assert shadow.alone(runs([parked, summary(1, {"working/compute": 9.0})])) == []


def test_a_shadow_of_no_length_is_not_worth_a_finding(runs) -> None:  # type: ignore[no-untyped-def]
    brief = summary(0, {"working/compute": 8.99, "finished/wait": 0.01}, SHADOW | {"count": 1})
    assert shadow.alone(runs([brief, summary(1, {"working/compute": 9.0})])) == []


def test_only_what_every_repeat_shows_is_a_finding(runs) -> None:  # type: ignore[no-untyped-def]
    clean = [summary(0, {"working/compute": 9.0}), summary(1, {"working/compute": 9.0})]
    assert shadow.alone(runs(join_run(), clean)) == []


def test_measured_joules_above_published_idle_watts_are_not_called_measured(runs) -> None:  # type: ignore[no-untyped-def]
    measured = [replace(s, energy_kind="measured") for s in join_run()]
    published = runs(measured)
    (finding,) = shadow.alone(published)
    assert (published.energy_kind, finding.energy_kind) == ("measured", "modelled")
    sensor = Sensor(period_s=0.1, window_s=0.1)
    calibrated = replace(published, profile=published.profile.model_copy(update={"sensor": sensor}))
    assert shadow.alone(calibrated)[0].energy_kind == "measured"


def test_monitors_that_saw_data_move_while_it_waited_are_evidence(runs) -> None:  # type: ignore[no-untyped-def]
    first, second = join_run()
    against = {"finished/wait": Corroboration("contradicts", "NVLink 90 to 95 GB/s")}
    (finding,) = shadow.alone(runs([replace(first, monitors=against), second]))
    assert finding.evidence["performance_monitors"] == "contradicts: NVLink 90 to 95 GB/s"
    assert finding.seconds == pytest.approx(7.0)
