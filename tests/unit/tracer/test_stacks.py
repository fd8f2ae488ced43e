import sys

import pytest

from magneton_dist.tracer import stacks as stacks_module
from magneton_dist.tracer.stacks import Stacks


def recurse(depth: int, act):
    return act() if depth == 0 else recurse(depth - 1, act)


def test_a_place_has_one_id_and_one_row(rows):
    stacks = Stacks(rows)
    ids = [stacks.here() for _ in range(3)]
    assert len(set(ids)) == 1
    other = stacks.here()
    assert other not in ids
    assert [row[0] for row in rows.of("stack")] == [ids[0], other]


def test_frames_are_innermost_first_with_the_line_of_the_call(rows):
    stacks = Stacks(rows)
    recurse(1, lambda: stacks.here())
    line = sys._getframe().f_lineno - 1
    ((_, frames),) = rows.of("stack")
    assert [name for _, _, name in frames[:4]] == ["<lambda>", "recurse", "recurse", sys._getframe().f_code.co_name]
    assert frames[0][0] == __file__
    assert [number for _, number, _ in frames[:4]][::3] == [line, line]


def test_callers_tell_stacks_apart(rows):
    stacks = Stacks(rows)
    assert recurse(1, stacks.here) != recurse(2, stacks.here)
    assert recurse(1, stacks.here) == recurse(1, stacks.here)  # frames say lines: these are the same
    ids = {recurse(3, stacks.here) for _ in range(3)}
    assert len(ids) == 1


def test_skip_leaves_out_the_innermost_frames(rows):
    stacks = Stacks(rows)

    def wrapper():
        return stacks.here(skip=1)

    wrapper()
    ((_, frames),) = rows.of("stack")
    assert frames[0][2] == "test_skip_leaves_out_the_innermost_frames"


def test_without_recording_origins_are_still_read(rows):
    stacks = Stacks(rows, record=False)
    stack = stacks.of(sys._getframe())
    assert stack.stack_id is None
    assert stack.origin(in_backward=False) == "user"
    assert rows.of("stack") == []


def test_code_that_was_thrown_away_never_lends_its_address_to_another(rows):
    stacks = Stacks(rows)
    ids = []
    for number in range(200):  # without a reference held, these code objects would reuse addresses
        scope = {"stacks": stacks}
        exec(compile(f"def f{number}():\n    return stacks.here()\nfound = f{number}()", f"<{number}>", "exec"), scope)
        ids.append(scope["found"])
    assert len(set(ids)) == 200


def test_the_number_of_stacks_is_bounded(rows, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacks_module, "_MOST", 5)
    stacks = Stacks(rows)
    ids = [recurse(depth, stacks.here) for depth in range(10)]
    assert None not in ids[:5]
    assert ids[5:] == [None] * 5
    assert len(rows.of("fault")) == 1


def test_no_frame_at_all(rows):
    stack = Stacks(rows).of(None)
    assert stack.frames == ()
    assert stack.origin(in_backward=True) == "ddp"
