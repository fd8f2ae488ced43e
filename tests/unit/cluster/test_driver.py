from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.cluster import driver
from magneton_dist.cluster.driver import Teller, _audit_folder
from magneton_dist.cluster.outcome import Report
from magneton_dist.cluster.progress import Forecast, Progress
from magneton_dist.config import AuditConfig, Job, Run
from magneton_dist.errors import InputError


def config(runs: Path) -> AuditConfig:
    return AuditConfig(name="x", variants={"a": Job(script="t.py")}, baseline="a", runs=runs)


def test_two_audits_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = _audit_folder(config(tmp_path)), _audit_folder(config(tmp_path))
    assert first != second
    assert first.parent == second.parent == tmp_path
    assert first.name.startswith("x-")


def test_a_folder_that_cannot_be_written_is_the_user_s_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"runs: .*file/runs: cannot be written") as caught:
        _audit_folder(config(tmp_path / "file" / "runs"))
    assert caught.value.exit_code == 2


class Clock:
    """`time` for the driver, set by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_the_time_left_is_extrapolated_from_steps_and_not_from_starting_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(driver, "time", clock)
    job = Job(script="t.py", stop_after_steps=100)
    audit = AuditConfig(name="x", variants={"a": job}, baseline="a", runs=tmp_path)
    heard: list[Progress] = []
    tell = Teller(audit, Run("a", 0), 0, 1, Forecast(["a"]), heard.append)
    for now_s, steps in ((8.0, 0), (10.0, 10), (12.0, 30), (14.0, 50)):
        clock.now_s = now_s
        tell(Report("Running", steps, 2))
    # ten steps a second from the tenth on, at 10 s: all hundred are done at 19 s
    assert [moment.left_s for moment in heard] == [None, None, pytest.approx(7.0), pytest.approx(5.0)]


def test_a_note_is_told_once(tmp_path: Path) -> None:
    heard: list[Progress] = []
    tell = Teller(config(tmp_path), Run("a", 0), 0, 1, Forecast(["a"]), heard.append)
    for missing in ((), ("rank 1: torn",), ("rank 1: torn",), ("rank 1: torn", "x", "y")):
        tell(Report("Running", 0, 0, missing))
    assert [moment.note for moment in heard] == ["", "rank 1: torn", "", "x; y"]
