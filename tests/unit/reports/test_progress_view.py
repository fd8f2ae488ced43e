import io
from dataclasses import replace

from rich.console import Console

from magneton_dist.cluster.progress import Progress
from magneton_dist.reports.progress import ProgressView, duration

MOMENT = Progress("Running", "join", 1, 3, 10, 12, 48, 2, 2, 41.0)


def test_elsewhere_a_line_per_change_and_one_every_ten_seconds():
    now = 0.0
    file = io.StringIO()
    with ProgressView(Console(file=file, width=80), clock=lambda: now) as show:
        for step in range(30):
            now = float(step)
            show(replace(MOMENT, step=step))
        show(replace(MOMENT, state="Draining", step=48, left_s=None))
    lines = file.getvalue().splitlines()
    assert lines == [
        "run 3 of 10, join, repeat 1: Running, step 0 of 48, 2 of 2 ranks, 41 s left",
        "run 3 of 10, join, repeat 1: Running, step 10 of 48, 2 of 2 ranks, 41 s left",
        "run 3 of 10, join, repeat 1: Running, step 20 of 48, 2 of 2 ranks, 41 s left",
        "run 3 of 10, join, repeat 1: Draining, step 48 of 48, 2 of 2 ranks",
    ]


def test_on_a_terminal_it_redraws_and_leaves_only_notes():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, legacy_windows=False)
    with ProgressView(console) as show:
        show(MOMENT)
        show(replace(MOMENT, note="rank 1 is \x1b[31mgone"))
    text = file.getvalue()
    assert "step 12 of 48, 2 of 2 ranks, 41 s left" in text
    assert "rank 1 is \ufffd[31mgone" in text
    # the live lines are erased when the view closes
    assert text.rstrip("\n").endswith("\x1b[2K")


def test_warm_up_and_unknowns_are_said_as_such():
    file = io.StringIO()
    with ProgressView(Console(file=file, width=80)) as show:
        show(Progress("Placing", "join", None, 1, 10, 0, None, 0, 2, None))
    assert file.getvalue() == "run 1 of 10, join, warm-up: Placing, step 0, 0 of 2 ranks\n"


def test_durations_in_words():
    assert [duration(s) for s in (0.4, 59.4, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 5 min"]
