from __future__ import annotations

import socket
from pathlib import Path

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import rapl as room
from magneton_dist.meters.rapl import RaplMeter

RANGE_UJ = 65_532_610_987


@pytest.fixture
def tree(tmp_path):
    """Two packages; a core zone inside one, DRAM beside it, and psys around all."""
    for folder, name in [
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"), ("intel-rapl:2", "psys"), ("intel-rapl-mmio:0", "package-0"),
    ]:  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(name + "\n")
        (tmp_path / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (tmp_path / folder / "energy_uj").write_text("1000000\n")
    return tmp_path


def put(tree: Path, zone: str, microjoules: int) -> None:
    (tree / zone / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_and_dram_add_up_and_nothing_counts_twice(tree, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    meter = RaplMeter(tree)
    clock.advance(2.0)
    put(tree, "intel-rapl:0", 101_000_000)
    put(tree, "intel-rapl:0:0", 91_000_000)
    put(tree, "intel-rapl:0:1", 21_000_000)
    put(tree, "intel-rapl:1", 51_000_000)
    put(tree, "intel-rapl:2", 201_000_000)
    reading = meter.read()
    assert reading.joules == pytest.approx(100 + 20 + 50)
    assert reading.watts == pytest.approx(170 / 2)
    assert meter.device == f"{socket.gethostname()}/package-0+dram-0+package-1"


def test_each_package_wraps_around_by_itself(tree, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    put(tree, "intel-rapl:1", RANGE_UJ - 40_000_000)
    meter = RaplMeter(tree)
    clock.advance(1.0)
    put(tree, "intel-rapl:1", 60_000_000)
    put(tree, "intel-rapl:0", 11_000_000)
    reading = meter.read()
    assert reading.joules == pytest.approx(110.0)
    assert reading.watts == pytest.approx(110.0)


def test_a_file_that_fails_is_a_gap_and_the_next_mean_does_not_span_it(tree, clock, monkeypatch):
    monkeypatch.setattr(room, "time", clock)
    meter = RaplMeter(tree)
    clock.advance(1.0)
    (tree / "intel-rapl:1" / "energy_uj").write_text("not a number")
    failed = meter.read()
    assert (failed.watts, failed.joules) == (None, None)
    assert "package-1" in failed.reason
    clock.advance(1.0)
    put(tree, "intel-rapl:1", 9_000_000)
    after = meter.read()
    assert (after.watts, after.joules) == (None, pytest.approx(8.0))
    clock.advance(1.0)
    put(tree, "intel-rapl:1", 14_000_000)
    assert meter.read().watts == pytest.approx(5.0)


def test_root_only_files_say_what_to_do(tree, monkeypatch):
    readable = Path.read_text

    def read_text(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return readable(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(MeterError, match=r"root only \(chmod a\+r"):
        RaplMeter(tree)


def test_no_rapl_is_an_error_that_says_why(tmp_path):
    with pytest.raises(MeterError, match="virtual machines"):
        RaplMeter(tmp_path)
