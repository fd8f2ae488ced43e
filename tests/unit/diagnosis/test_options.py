from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.diagnosis.lines import Sources
from magneton_dist.diagnosis.options import declared, words

SCRIPT = """
add = parser.add_argument
if wanted:
    add("-f", "--on-finish", default="park")
add("--quiet", dest="silent")
print("a-b".split("-"))
"""


def test_an_option_is_found_where_it_is_declared(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    files = [str(tmp_path / "none.py"), str(file)]
    assert declared("on_finish", files, Sources()) == f"option --on-finish ({file}:4)"
    assert declared("silent", files, Sources()) == f"option --quiet ({file}:5)"
    assert declared("quiet", files, Sources()) == ""  # kept under another name
    assert declared("sync", files, Sources()) == ""


@pytest.mark.parametrize(
    ("shown", "args", "said"),
    [
        ("'join'", ("--layers", "2", "--sync", "join"), "--sync join"),
        ("'join'", ("--sync=join",), "--sync=join"),
        ("2", ("--sync", "2"), "--sync 2"),
        ("True", ("--sync", "data.txt"), "--sync"),  # a flag, and something else
        ("'join'", ("--sync", "throw", "--sync", "join"), "--sync join"),  # the last one counts
        ("'join'", ("--sync", "throw"), ""),  # something else has changed it
        ("'join'", ("--synch", "join"), ""),
        ("'join'", (), ""),
    ],
)
def test_the_words_that_set_an_option(shown: str, args: tuple[str, ...], said: str) -> None:
    assert words("sync", shown, args) == said
    assert words("on_finish", "'park'", ("--on-finish", "park")) == "--on-finish park"
