"""The meter through the real `nvidia-ml-py`, on a driver library compiled here that does as it is told."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pynvml
import pytest

from magneton_dist.energy.corroboration import corroborate
from magneton_dist.errors import MeterError
from magneton_dist.meters import nvml as room
from magneton_dist.meters.gpm import Activity
from magneton_dist.meters.nvml import NvmlMeter, visible_gpus
from magneton_dist.meters.sampler import Sampler
from magneton_dist.timeline.states import STATES

GPUS = ("GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000")
MIG = "MIG-cccc4444-0000"
NOT_SUPPORTED, NO_PERMISSION = 3, 4
TYPES = {"power_mw": ctypes.c_uint, "energy_mj": ctypes.c_ulonglong, "reasons": ctypes.c_ulonglong}


class Library:
    """Its globals as attributes."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        object.__setattr__(self, "loaded", loaded)

    def _global(self, name: str) -> ctypes._SimpleCData[int]:
        return TYPES.get(name, ctypes.c_int).in_dll(self.loaded, name)

    def __getattr__(self, name: str) -> int:
        return self._global(name).value

    def __setattr__(self, name: str, value: int) -> None:
        self._global(name).value = value


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    path = tmp_path / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(path)))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    library = Library(pynvml.nvmlLib)
    yield library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert library.open_count == 0


@pytest.fixture
def meter(library: Library) -> Iterator[NvmlMeter]:
    meter = NvmlMeter(GPUS[1])
    yield meter
    meter.close()


def test_power_energy_and_conditions_are_read(meter: NvmlMeter, library: Library) -> None:
    library.energy_mj += 12_500
    library.reasons = 0x04 | 0x40
    library.process_count = 3
    reading, now_ns = meter.read(), time.monotonic_ns()
    assert (reading.watts, reading.joules, reading.reason) == (124.0, 12.5, "")
    assert 25e6 < now_ns - reading.t_ns < 300e6  # the library's value is 30 ms old
    conditions = meter.conditions()
    assert (conditions.temperature_c, conditions.power_cap_w) == (41.0, 700.0)
    assert conditions.throttled == ("software power cap", "hardware thermal slowdown")
    assert "3 processes" in conditions.shared
    assert "NVIDIA H200, driver 580.1" in meter.source


def test_a_counter_that_sticks_is_dropped(meter: NvmlMeter, clock, monkeypatch) -> None:
    monkeypatch.setattr(room, "time", clock)
    clock.now_ns = time.monotonic_ns()
    clock.advance(30)
    reading = meter.read()
    assert (reading.watts, reading.joules) == (124.0, None)
    assert "not moved" in reading.reason


@pytest.mark.parametrize(("error", "words"), [(NOT_SUPPORTED, "Not Supported"), (NO_PERMISSION, "Permission")])
def test_what_the_driver_refuses_is_a_gap_with_its_words(meter, library, error, words) -> None:
    library.power_error = library.energy_error = error
    reading = meter.read()
    assert (reading.watts, reading.joules) == (None, None)
    assert words in reading.reason


def test_a_gpu_that_tells_nothing_is_unmeasured_not_zero(library: Library) -> None:
    library.power_error, library.average_error, library.energy_error = NOT_SUPPORTED, NO_PERMISSION, NOT_SUPPORTED
    meter = NvmlMeter(GPUS[0])
    assert (meter.provenance, meter.sensor) == ("unmeasured", "null")
    assert "Permission" in meter.source
    assert meter.read().watts is None
    meter.close()


def test_a_slice_and_a_unique_prefix_find_their_gpu(library: Library) -> None:
    for asked, uuid, shared in [(MIG, GPUS[2], True), ("GPU-bbbb2", GPUS[1], False), (GPUS[0], GPUS[0], False)]:
        meter = NvmlMeter(asked)
        assert (meter.device, bool(meter.conditions().shared)) == (uuid, shared)
        meter.close()
    with pytest.raises(MeterError):
        NvmlMeter("GPU-bbbb")


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, GPUS), ("2,0", (GPUS[2], GPUS[0])), ("GPU-bbbb3333,GPU-aaaa", (GPUS[2], GPUS[0])), ("", ()),
        (MIG, (GPUS[2],)), ("1,-1,0", (GPUS[1],)),
    ],
)  # fmt: skip
def test_visible_devices_in_cudas_order(library: Library, value: str | None, uuids: tuple[str, ...]) -> None:
    assert visible_gpus(value).uuids == uuids


def test_activity_fills_the_real_structures(meter: NvmlMeter, library: Library) -> None:
    assert meter.activity() is None
    time.sleep(0.11)
    activity = meter.activity()
    assert activity is not None
    # the library answers each metric with its number: SM 2, tensor 5, DRAM 10 percent
    assert activity == Activity(activity.start_ns, activity.end_ns, 0.02, 0.05, pytest.approx(0.10), None)
    assert activity.end_ns - activity.start_ns >= 110_000_000
    library.gpm_error = NO_PERMISSION
    time.sleep(0.11)
    assert meter.activity() is None


def test_the_sampler_with_monitors_costs_little_of_a_core(meter: NvmlMeter) -> None:
    sampler = Sampler(meter)
    sampler.start()
    time.sleep(3)
    sampler.stop()
    seen = sampler.monitors()
    assert 15 <= seen.height <= 30  # every second or third reading of the power
    assert seen["dram"].to_list() == pytest.approx([0.10] * seen.height)
    assert seen["start_ns"][1:].to_list() == seen["end_ns"][:-1].to_list()
    assert sampler.core_share <= 0.01


def test_a_run_that_waits_and_transfers_by_turns_is_corroborated(meter: NvmlMeter, library: Library) -> None:
    """For seconds the device spins (nothing moves) or transfers (250 GB/s, 8 % of DRAM), each for 30 to 300 ms."""
    moves = library.loaded.fake_moves
    moves.argtypes, moves.restype = [ctypes.c_double, ctypes.c_double], None
    random, states = np.random.default_rng(0), []
    moves(0.1, 0.0)
    sampler = Sampler(meter)
    sampler.start()
    edges = [time.monotonic_ns()]
    for turn, lasts_s in enumerate(random.uniform(0.03, 0.3, 30)):
        transfers = turn % 2 == 1
        moves(*((8.0, 250e9 / 2**20) if transfers else (0.1, 0.0)))
        time.sleep(lasts_s)
        edges.append(time.monotonic_ns())
        states.append((edges[-2], edges[-1], "working", "transfer" if transfers else "wait"))
    sampler.stop()
    said = corroborate(pl.DataFrame(states, schema=STATES.schema, orient="row"), sampler.monitors())
    assert {state: one.verdict for state, one in said.items()} == dict.fromkeys(
        ["working/wait", "working/transfer"], "agrees"
    )
    low, high = (float(word) for word in said["working/transfer"].reason.split(" GB/s")[0].split()[1::2])
    assert low - 25 < 250 < high + 25
