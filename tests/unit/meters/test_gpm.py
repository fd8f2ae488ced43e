from __future__ import annotations

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import gpm as room
from magneton_dist.meters.gpm import Activity
from magneton_dist.meters.nvml import NvmlMeter

GPU = "GPU-aaaa1111-0000"
MS = 1_000_000
SINCE_NS = 1_000_000_000  # when the false clock begins


@pytest.fixture
def meter(nvml, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    meter = NvmlMeter(GPU, nvml)
    assert meter.activity() is None  # the first look
    return meter


def test_activity_is_told_between_two_looks_100_ms_apart(meter, nvml, clock):
    clock.advance(0.099)
    assert meter.activity() is None
    clock.advance(0.151)
    assert meter.activity() == Activity(SINCE_NS, SINCE_NS + 250 * MS, 1.0, 0.005, 0.01, 4 * 2**20)
    assert meter.activity() is None  # since then no time has passed
    clock.advance(0.1)
    nvml.gpm[5] = 40.0
    assert meter.activity() == Activity(SINCE_NS + 250 * MS, SINCE_NS + 350 * MS, 1.0, 0.4, 0.01, 4 * 2**20)


def test_what_the_device_does_not_tell_is_none(meter, nvml, clock):
    nvml.gpm = {2: 50.0}
    clock.advance(1)
    assert meter.activity() == Activity(SINCE_NS, SINCE_NS + 1000 * MS, 0.5, None, None, None)


def test_a_driver_that_fails_is_a_gap_and_the_next_look_spans_it(meter, nvml, clock):
    clock.advance(0.2)
    nvml.errors["nvmlGpmMetricsGet"] = 4
    assert meter.activity() is None
    del nvml.errors["nvmlGpmMetricsGet"]
    clock.advance(0.2)
    seen = meter.activity()
    assert (seen.start_ns, seen.end_ns) == (SINCE_NS, SINCE_NS + 400 * MS)


def test_a_driver_that_keeps_failing_is_given_up_with_its_words(meter, nvml, clock):
    nvml.errors["nvmlGpmSampleGet"] = 4
    for _ in range(9):
        clock.advance(0.2)
        assert meter.activity() is None
    with pytest.raises(MeterError, match="Insufficient Permissions, 10 times in a row"):
        meter.activity()


def test_closing_the_meter_frees_the_samples(meter, nvml):
    assert nvml.samples == 2
    meter.close()
    assert (nvml.samples, nvml.opened) == (0, 0)


def test_a_gpu_without_monitors_and_a_user_without_permission_are_told_apart(nvml):
    nvml.gpm = None
    with pytest.raises(MeterError, match="no performance monitors"):
        NvmlMeter(GPU, nvml).activity()
    nvml.gpm = {}
    nvml.errors["nvmlGpmSampleGet"] = 4
    with pytest.raises(MeterError, match="Insufficient Permissions"):
        NvmlMeter(GPU, nvml).activity()
    assert nvml.samples == 0
