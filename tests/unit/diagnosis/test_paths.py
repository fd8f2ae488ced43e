from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from magneton_dist.diagnosis.paths import HERE, parted_words, parting, watched
from magneton_dist.diagnosis.recorded import Recorded
from magneton_dist.diagnosis.rerun import Watched

MAIN, ATTEND = "train.py:50 main", "train.py:34 forward"


def side(name: str, *ops: tuple[str, int, tuple[str, ...]]) -> Recorded:
    """Operators as name, ns, and stack from the inside."""
    table = pl.DataFrame(
        {
            "name": [op[0] for op in ops], "start_ns": [0] * len(ops), "end_ns": [op[1] for op in ops],
            "stack_id": range(len(ops)),
        }
    )  # fmt: skip
    stacks = [op[2] for op in ops]
    record: Any = SimpleNamespace(ops=table, op_stacks=stacks, stacks=dict(enumerate(stacks)))
    return Recorded(name, {}, record, range(len(ops)))


def test_the_frames_behind_the_last_common_one_are_named():
    view = ("aten.view.default", 900, (MAIN,))
    eager = side(
        "eager", view,
        ("aten.bmm.default", 500, ("train.py:9 written_out", ATTEND, MAIN)),
        ("aten._softmax.default", 100, ("train.py:10 written_out", ATTEND, MAIN)),
    )  # fmt: skip
    sdpa = side("sdpa", view, ("aten._scaled_dot_product_flash_attention_for_cpu.default", 90, (ATTEND, MAIN)))
    cause = parting(eager, sdpa)
    assert cause is not None
    assert cause.name == f"what {ATTEND} calls"
    assert cause.values == {"eager": "train.py:9 written_out", "sdpa": HERE}


def test_sides_with_the_same_operators_or_the_same_stacks_do_not_part():
    same = ("aten.mm.default", 5, (MAIN,))
    assert parting(side("a", same), side("b", same)) is None
    assert parting(side("a", same), side("b", ("aten.addmm.default", 5, (MAIN,)))) is None


def test_command_lines_differ_by_options_with_their_values():
    one, other = ["train.py", "--sync", "join", "--n", "2"], ["train.py", "--sync", "exit", "-q", "--n", "2"]
    assert parted_words(one, other) == ("--sync join", "--sync exit -q")
    assert parted_words(["x", "-a", "0", "-n", "1"], ["x", "-a", "1", "-n", "1"]) == ("-a 0", "-a 1")
    assert parted_words(one, one) == ("", "")


def test_the_function_in_which_stacks_part_is_watched_alone(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def forward(x):\n    if x:\n        one()\n    else:\n        two()\n\ndef no():\n    three()\n")
    a, b = (
        side(name, (op, 5, (f"{file}:{line} forward", MAIN))) for name, op, line in (("a", "one", 3), ("b", "two", 5))
    )
    assert watched(a, b) == (Watched(str(file), "forward", None, 3), Watched(str(file), "forward", None, 5))
    # other functions of the same name: what calls them is watched
    c = side("c", ("three", 5, (f"{file}:8 forward", MAIN)))
    assert watched(a, c) == (Watched("train.py", "main", 50), Watched("train.py", "main", 50))
    assert watched(a, a) is None
