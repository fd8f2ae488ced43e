"""Joules of a flip, with meters whose watts are known."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from magneton_dist.diagnosis.calls import Call, Tensor
from magneton_dist.diagnosis.factors import Factor, argument_factors
from magneton_dist.diagnosis.joules import RULES, flip_joules
from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.diagnosis.prove import Flipped
from magneton_dist.diagnosis.trial import Side, Trial
from magneton_dist.errors import MeterError
from magneton_dist.meters.meter import Conditions, Reading

CAUSE = frozenset({0})
WATTS = 50.0


class Steady:
    """A device that draws `WATTS` whatever it does, and has a counter of its joules."""

    name, provenance, source, device = "steady", "measured", "a test", "x"
    sensor, counter, period_s, window_ns = "power", "energy", 0.02, 20_000_000
    closed = False

    def read(self) -> Reading:
        return Reading(time.monotonic_ns(), watts=WATTS, joules=WATTS * time.monotonic())

    def conditions(self) -> Conditions:
        return Conditions()

    def close(self) -> None:
        self.closed = True


class Sleeping:
    """A trial whose call takes 2 ms, and 4 ms with the cause flipped."""

    gpu = False

    def repeated(self, flipped: Flipped, seconds: float) -> dict[str, Any]:
        each = 0.004 if flipped == CAUSE else 0.002
        start_ns = time.monotonic_ns()
        time.sleep(seconds)
        end_ns = time.monotonic_ns()
        rounds = round((end_ns - start_ns) / 1e9 / each)
        return {"repeated": {"start_ns": start_ns, "end_ns": end_ns, "rounds": rounds}}

    def seconds(self, flipped: Flipped) -> float:
        return 0.004 if flipped == CAUSE else 0.002


QUICK = replace(RULES, warm_up_s=0.05, discard_s=0, window_s=0.5, most=3)


def test_what_a_meter_measures_is_joules_of_a_call():
    trial: Any = Sleeping()
    meter: Any = Steady()
    found = flip_joules(trial, CAUSE, "steady", 60.0, lambda spec, device: (meter, ""), QUICK)
    assert found.kind == "measured"
    assert found.before == pytest.approx(WATTS * 0.002, rel=0.08)
    assert found.after == pytest.approx(WATTS * 0.004, rel=0.08)
    assert found.words.startswith(("1.9", "2.0"))
    assert found.words.endswith("measured by steady")
    assert meter.closed
    assert f"with just the flag as in b: {found.words[:3]}" in found.line(("a", "b"), ["the flag"])


def test_modelled_joules_are_watts_of_computing_times_the_time_and_say_so():
    trial: Any = Sleeping()
    found = flip_joules(trial, CAUSE, "modelled:h200", 60.0)
    assert found.kind == "modelled"
    assert found.before is not None
    assert found.after == pytest.approx(2 * found.before)
    assert 100 < found.before / 0.002 < 701  # an H200 draws no more
    assert "modelled: its time at" in found.words


def test_where_nothing_measures_there_are_no_joules():
    trial: Any = Sleeping()

    def broken(spec: str, device: str) -> Any:
        raise MeterError("no such sensor", where=spec)

    class Silent(Steady):
        provenance = "unmeasured"

    found = [
        flip_joules(trial, CAUSE, "rapl", 60.0, opened)  # type: ignore[arg-type]
        for opened in (broken, lambda spec, device: (Silent(), ""))
    ] + [flip_joules(trial, CAUSE, "steady", 1.0, lambda spec, device: (Steady(), ""))]  # type: ignore[return-value, arg-type]
    assert [(each.before, each.after, each.kind) for each in found] == [(None, None, "unmeasured")] * 3
    assert "no such sensor" in found[0].words
    assert "does not measure" in found[1].words
    assert "more than are left" in found[2].words
    assert found[0].line(("a", "b"), ["x"]).startswith("energy: of a call: unmeasured: ")


def test_calls_are_repeated_in_fresh_processes():
    """256 times the rows of a product are far more work, however busy the machine is."""
    small, large = (
        Call("aten.mm.default", ({"v": 0}, {"v": 1}), (Tensor((n, 256), (256, 1), "float32", "cpu"), right))
        for n, right in ((16, SQUARE), (4096, SQUARE))
    )
    with Laboratory(300) as laboratory:
        trial = Trial(laboratory, Side({}, small), Side({}, large), argument_factors(small, large), dict(os.environ))
        meter: Any = Steady()
        found = flip_joules(trial, CAUSE, "steady", 60.0, lambda spec, device: (meter, ""), QUICK)
        lost = Trial(laboratory, Side({}, BROKEN), Side({}, BROKEN), [NONE], dict(os.environ))
        assert "could not be repeated" in flip_joules(lost, CAUSE, "x", 60, lambda *_: (Steady(), ""), QUICK).words  # type: ignore[arg-type, return-value]
    assert found.before is not None
    assert found.after is not None
    assert not math.isnan(found.before)
    assert found.after > 3 * found.before


SQUARE = Tensor((256, 256), (256, 1), "float32", "cpu")
BROKEN = Call("aten.nothing.default", (), ())
NONE = Factor("setting", "torch.backends.mkldnn.enabled", ("True", "True"))
