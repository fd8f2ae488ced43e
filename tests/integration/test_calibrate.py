"""Calibration in real time: a simulated meter on a pretended load, and the real load on this machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from magneton_dist.commands import run
from magneton_dist.errors import MeterError
from magneton_dist.meters import rapl
from magneton_dist.meters.calibration import Durations, calibrate
from magneton_dist.meters.load import NO_BOOST, TorchLoad
from magneton_dist.meters.meter import Reading
from magneton_dist.meters.profile import load_profile, save_profile
from magneton_dist.meters.sensor import Sensor
from magneton_dist.meters.simulated import SimulatedMeter


class PretendedLoad:
    """Draws known watts, for the time it says."""

    def __init__(self) -> None:
        self.changes = [(time.monotonic() - 10, 74.0)]
        self.began: list[bool] = []

    def trace(self) -> tuple[np.ndarray, np.ndarray]:
        edges_s, watts = zip(*self.changes, strict=True)
        return np.array([*edges_s, time.monotonic() + 1]), np.array(watts)

    def _draw(self, watts: float) -> float:
        self.changes.append((time.monotonic(), watts))
        return self.changes[-1][0]

    def start(self, boost: bool) -> None:
        self.began.append(boost)
        self._draw(120.0 if boost else 80.0)

    def spin(self, seconds: float) -> None:
        self._draw(130.0)
        time.sleep(seconds)
        self._draw(120.0)

    def pulses(self, lengths_s: Sequence[float]) -> list[float]:
        edges_s = []
        for index, length_s in enumerate(lengths_s):
            edges_s.append(self._draw(120.0 if index % 2 else 600.0))
            time.sleep(length_s)
        return [*edges_s, self._draw(120.0)]

    def stop(self) -> None:
        self._draw(74.0)


def test_a_device_is_measured_through_its_meter_and_the_profile_is_kept(tmp_path):
    load, said = PretendedLoad(), []
    truth = Sensor(period_s=0.02, window_s=0.01, lag_s=0.03)
    meter = SimulatedMeter(truth, load.trace, noise_w=1.0)
    profile = calibrate(meter, load, Durations(settle_s=0.2, state_s=0.4, pulses_s=5.0), said.append)
    assert load.began == [False, True]
    assert said[0] == "bare idle"
    watts = {key: state.nominal for key, state in profile.watts.items()}
    assert watts["bare_idle"] == pytest.approx(74, abs=2)
    assert watts["context_idle"] == pytest.approx(120, abs=2)
    assert profile.watts["context_idle"].low == pytest.approx(80, abs=4)
    assert f"{NO_BOOST}=1" in profile.watts["context_idle"].source
    assert watts["wait"] == pytest.approx(130, abs=2)
    assert watts["compute"] == pytest.approx(600, rel=0.02)
    assert profile.sensor.name == "simulated"
    assert profile.sensor.period_s == pytest.approx(0.02, abs=0.002)
    assert profile.sensor.lag_s == pytest.approx(0.03, abs=0.005)
    assert profile.sensor.window_s == pytest.approx(0.01, abs=0.005)

    save_profile(profile, tmp_path / "measured.yaml")
    assert load_profile(str(tmp_path / "measured.yaml")) == profile


def test_a_meter_that_dies_meanwhile_is_named_with_its_own_words():
    load = PretendedLoad()
    meter = SimulatedMeter(Sensor(period_s=0.02, window_s=0.01, lag_s=0.03), load.trace)
    whole, dies_s = meter.read, time.monotonic() + 0.3

    def read() -> Reading:
        return whole() if time.monotonic() < dies_s else Reading(time.monotonic_ns(), None, None, reason="GPU is lost")

    meter.read = read
    with pytest.raises(MeterError, match=r"of \d+ readings failed: meter simulated: GPU is lost \(\d+ times\)"):
        calibrate(meter, load, Durations(settle_s=0.05, state_s=0.1, pulses_s=0.8), lambda _: None)


def test_the_real_load_does_what_it_says_and_ends():
    load = TorchLoad("cpu")
    load.start(boost=True)
    process = load._process
    asked = [0.05, 0.1, 0.2, 0.05]
    before_s = time.monotonic()
    edges_s = load.pulses(asked)
    after_s = time.monotonic()
    assert before_s <= edges_s[0] < edges_s[-1] <= after_s  # one clock for both processes
    lengths_s = np.diff(edges_s)
    assert (lengths_s >= np.array(asked) - 0.001).all()
    load.spin(0.05)
    load.stop()
    assert process.returncode == 0
    load.stop()


def test_a_load_that_fails_says_why():
    with pytest.raises(MeterError, match="the load ended"):
        TorchLoad("GPU-that-is-not-there").start(boost=False)


def test_without_a_meter_it_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rapl.RaplMeter.__init__, "__defaults__", (tmp_path / "powercap",))
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nothing measures cpu" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["no-such-folder/mine.yaml", "a-file/mine.yaml"])
def test_what_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, capsys, output):
    (tmp_path / "a-file").touch()
    assert run(["calibrate", "--device", "cpu", "--meter", "rapl", "--output", str(tmp_path / output)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_profile_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("mine")
    assert run(["calibrate", "--device", "cpu", "--output", str(tmp_path / "mine.yaml")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == "mine"
