from __future__ import annotations

import json
from pathlib import Path

from magneton_dist.cluster.spool import Follower
from magneton_dist.tracer.rows import FIELDS


def row(kind: str, **fields: object) -> list[object]:
    return [kind, *(fields.get(name) for name in FIELDS[kind])]


def segment(folder: Path, number: int, *rows: list[object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number:06d}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))


def test_sums_grow_with_the_segments(tmp_path: Path) -> None:
    folder = tmp_path / "l0-0"
    follower = Follower(folder)
    assert follower.advance().steps == 0
    segment(folder, 0, row("collective", call_id=0), row("step", step=0, units=512.0), row("stamp", t_ns=1))
    assert (follower.sums.steps, follower.advance().steps) == (0, 1)
    segment(folder, 1, row("step", step=1, units=256.0), row("collective", call_id=6), row("step", step=2))
    sums = follower.advance()
    assert (sums.steps, sums.units, sums.collectives) == (3, 768.0, 7)


def test_a_segment_is_read_once(tmp_path: Path) -> None:
    segment(tmp_path, 0, row("step", step=0, units=1.0))
    follower = Follower(tmp_path)
    follower.advance()
    assert follower.advance().steps == 1


def test_an_open_segment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "000000.jsonl.open").write_text('["step", 0')
    assert Follower(tmp_path).advance().steps == 0


def test_units_stay_unknown_when_the_script_does_not_say(tmp_path: Path) -> None:
    segment(tmp_path, 0, row("step", step=0))
    assert Follower(tmp_path).advance().units is None


def test_a_damaged_row_is_no_step_less(tmp_path: Path) -> None:
    (tmp_path / "000000.jsonl").write_text('["step", 0, 1\n["collective", \n')
    sums = Follower(tmp_path).advance()
    assert (sums.steps, sums.units) == (1, None)
