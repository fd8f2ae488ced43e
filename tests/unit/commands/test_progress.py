from __future__ import annotations

import io

import pytest
from rich.console import Console

from magneton_dist.cluster.progress import Progress
from magneton_dist.commands.progress import Ticker, describe, duration

START = Progress("Starting", "join", None, 1, 10, 0, None, 0, 2, None)
LATER = Progress("Running", "early-exit", 2, 5, 10, 12, 48, 2, 2, 41.4)


def test_one_line_for_each_moment():
    assert describe(START) == "run 1/10  join warm-up  starting"
    assert describe(LATER) == "run 5/10  early-exit repeat 2  running  ranks 2/2  step 12/48  about 41 s left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3600, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_off_a_terminal_a_run_is_one_line_and_notes_are_kept():
    file = io.StringIO()
    with Ticker(Console(file=file)) as ticker:
        for moment in (
            START,
            Progress("Running", "join", None, 1, 10, 3, None, 2, 2, None, "rank 1: gone [b]"),
            LATER,
        ):
            ticker(moment)
    assert file.getvalue() == f"{describe(START)}\nrank 1: gone [b]\n{describe(LATER)}\n"
