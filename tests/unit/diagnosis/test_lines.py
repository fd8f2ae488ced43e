from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from magneton_dist.diagnosis.lines import Recorder, watch

SOURCE = Path(__file__).read_text().splitlines()
CALLS = 200


class Counting(Recorder):
    """Counts the frames that it is asked about."""

    asked = 0

    def entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.asked += 1
        return super().entered(frame, event, argument)


def line_of(text: str) -> int:
    (number,) = [n for n, line in enumerate(SOURCE, start=1) if line.endswith(f"# {text}")]
    return number


def elsewhere() -> None:
    for _ in range(CALLS):
        nothing()


def nothing() -> None:
    pass


def job(kind: str) -> list[int]:
    chosen = kind.upper()
    return doubled(chosen)  # the statement


def doubled(chosen: str) -> list[int]:
    return [2 * ord(letter) for letter in chosen]


def recorded(recorder: Recorder, path: Path, *, at_once: bool) -> dict[str, Any]:
    before = sys.gettrace()
    (sys.settrace(recorder.entered) if at_once else watch(recorder))
    try:
        elsewhere()
        job("a")
    finally:
        sys.settrace(before)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_waiting_for_the_place_costs_no_call_where_python_can(tmp_path: Path) -> None:
    found = []
    for at_once in (True, False):
        path = tmp_path / str(at_once)
        recorder = Counting(__file__, "job", line_of("the statement"), None, str(path))
        found.append(recorded(recorder, path, at_once=at_once)["tree"])
        waits = not at_once and sys.version_info >= (3, 12)
        assert (recorder.asked < CALLS) == waits, recorder.asked
    assert found[0] == found[1]  # `code` numbers included
    lines = found[0]["lines"]
    assert [(SOURCE[line[0] - 1].strip(), line[1]) for line in lines] == [
        ("chosen = kind.upper()", {"kind.upper": "builtins.str.upper"}),
        ("return doubled(chosen)  # the statement", {
            "doubled": f"{__name__}.doubled", "chosen": "'A'",
        }),
    ]  # fmt: skip
    (called,) = lines[1][3]
    assert SOURCE[called["lines"][0][0] - 1].strip().startswith("return [2 * ord(letter)")


def test_other_threads_are_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    before = sys.gettrace()
    watch(Recorder(__file__, "job", line_of("the statement"), None, str(path)))
    try:
        thread = threading.Thread(target=job, args=("b",))
        thread.start()
        thread.join()
        assert not path.exists()
        job("a")
    finally:
        sys.settrace(before)
    assert json.loads(path.read_text())["tree"]["lines"][1][1]["chosen"] == "'A'"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_a_tool_of_the_jobs_own_keeps_its_id(tmp_path: Path) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    monitoring.use_tool_id(3, "the job's")
    path = tmp_path / "lines"
    try:
        found = recorded(Recorder(__file__, "job", line_of("the statement"), None, str(path)), path, at_once=False)
        assert monitoring.get_tool(3) == "the job's"
        assert monitoring.get_tool(4) is None  # given back
    finally:
        monitoring.free_tool_id(3)
    assert len(found["tree"]["lines"]) == 2
